#!/usr/bin/perl

# HTTP/3: an upload and its answer; streams and connections that end in the
# middle of either give their slot back.
#
# Needs an nginx with the module of HTTP/3, and a Python with aioquic, which is
# in PyPI and not in Debian 12; it is skipped without them, so by ./check:
#
#     tools/build-nginx --version 1.26.3 build-nginx-126
#     python3 -m venv DIR && DIR/bin/pip install aioquic
#     TEST_NGINX_BINARY=$PWD/build-nginx-126/nginx TEST_NGINX_STATIC=1 \
#         TEST_HTTP3_PYTHON=DIR/bin/python prove t/clients_http3.t
#
# "listen ... quic" needs a certificate as "ssl" does, and "reuseport" as soon
# as there are several workers; docs/directives.md has a whole configuration.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;

my $python = $ENV{TEST_HTTP3_PYTHON} // 'python3';
my $nginx = $ENV{TEST_NGINX_BINARY} // '/usr/sbin/nginx';

if (!-x $nginx || `$nginx -V 2>&1` !~ /--with-http_v3_module/) {
    plan(skip_all => "no nginx with HTTP/3: $nginx");
}

if (system("$python -c 'import aioquic' 2>/dev/null") != 0) {
    plan(skip_all => "no aioquic in $python");
}

my $t = VLM::Test->new();
my $engine = $t->engine('a');
my $port = $t->free_port();
my $certificate = "$t->{dir}/cert.pem";

system("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost "
       . "-addext subjectAltName=DNS:localhost -keyout $t->{dir}/key.pem "
       . "-out $certificate 2>/dev/null") == 0 or die 'no certificate';

$t->nginx(http => 'vlm_max_requests 1;', server => <<EOF_SERVER,
listen 127.0.0.1:$port quic;
ssl_certificate $certificate;
ssl_certificate_key $t->{dir}/key.pem;
EOF_SERVER
    locations => <<'EOF_CONF');
location /v {
    vlm_pass unix:%%DIR%%/a.sock;
    vlm_connect_timeout 20s;
}
EOF_CONF

sub client {
    my ($mode) = @_;

    unlink("$t->{dir}/h3.out");
    my $pid = spawn("$t->{dir}/h3.out", $python, 't/lib/http3_client.py',
                    $certificate, $port, $mode);
    is(reap($pid, 60), 0, "$mode: the client")
        or diag(VLM::Test::slurp("$t->{dir}/h3.out"));

    return VLM::Test::slurp("$t->{dir}/h3.out");
}

# the only one there is

sub slot {
    my ($mode) = @_;

    ok(wait_for(sub { $t->post('/v', [ prompt => 'x' ])->{status} == 200 }),
       "$mode: the slot is free");
}

for my $mode (qw/ whole upload-reset upload-close answer-stop answer-close
                  whole /)
{
    my $requests = $engine->lines(qr/^request .*prompt="(?:good|!slow)/);
    my $cancels = $engine->lines(qr/^cancelled /);
    my $said = client($mode);

    if ($mode eq 'whole') {
        like($said, qr/^status 200$/m, 'whole: status');
        like($said, qr/^data: \[DONE\]$/m, 'whole: all of the answer');
        like($said, qr/^end$/m, 'whole: its end');

    } elsif ($mode =~ /^answer/) {
        ok($engine->wait_lines(qr/^cancelled /, $cancels + 1),
           "$mode: cancelled");
    }

    slot($mode);

    is(scalar $engine->lines(qr/^request .*prompt="(?:good|!slow)/),
       $requests + ($mode =~ /^upload/ ? 0 : 1), "$mode: at the engine");
}

is(scalar $engine->lines(qr/WRONG|bad record/), 0, 'every sum was right');
like($t->access_log(), qr!^200 .*"POST /v HTTP/3\.0"!m, 'in the access log');

$t->done();
