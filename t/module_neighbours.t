#!/usr/bin/perl

# Beside other modules: authentication, limits, compression, TLS, a proxy in
# front, error pages.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;
use IO::Uncompress::Gunzip qw/ gunzip $GunzipError /;
use Time::HiRes qw/ sleep /;

my $t = VLM::Test->new();
my $engine = $t->engine('a');
my $tls = $t->free_port();
my $h2 = $t->free_port();

my $pid = spawn("$t->{dir}/openssl.out", qw/ openssl req -x509 -nodes -newkey
    rsa:2048 -days 2 -subj /, '/CN=localhost', '-keyout',
    "$t->{dir}/key.pem", '-out', "$t->{dir}/cert.pem");
my $status = reap($pid, 30);
my $have_tls = defined $status && $status == 0;

my $listen = "listen 127.0.0.1:$h2 http2;\n";
$listen .= "listen 127.0.0.1:$tls ssl http2;\n"
    . "ssl_certificate %%DIR%%/cert.pem; ssl_certificate_key %%DIR%%/key.pem;"
    if $have_tls;

$t->nginx(http => <<'EOF_HTTP', server => $listen, locations => <<'EOF_CONF');
limit_req_zone $binary_remote_addr zone=slow:1m rate=5r/s;
limit_conn_zone $binary_remote_addr zone=few:1m;
EOF_HTTP
location /v {
    vlm_pass unix:%%DIR%%/a.sock;
}

location /auth {
    auth_request /decide;
    vlm_pass unix:%%DIR%%/a.sock;
}

location = /decide {
    internal;
    if ($http_x_key = "good") {
        return 204;
    }
    return 401;
}

location /limited {
    limit_req zone=slow burst=5;
    vlm_pass unix:%%DIR%%/a.sock;
}

location /few {
    limit_conn few 1;
    vlm_pass unix:%%DIR%%/a.sock;
}

location /gzip {
    gzip on;
    gzip_types text/event-stream text/plain application/json;
    gzip_min_length 0;
    vlm_pass unix:%%DIR%%/a.sock;
}

location /rate {
    limit_rate 100;
    vlm_pass unix:%%DIR%%/a.sock;
}

location /pages {
    error_page 400 413 502 503 /page.html;
    client_max_body_size 1k;
    vlm_pass unix:%%DIR%%/a.sock;
}

location /proxied/ {
    proxy_pass http://127.0.0.1:%%PORT%%/;
    proxy_http_version 1.1;
}

location /denied {
    deny all;
    vlm_pass unix:%%DIR%%/a.sock;
}
EOF_CONF

my @text = (headers => [ 'Accept: text/plain' ]);
my $answer = "roles=user;pictures=0;sha=;prompt=x\n";
my $big = form([ prompt => 'x', other => 'y' x 500_000 ]);

# authentication: no body is read for those who may not

my $r = $t->exchange(request('/auth', $big, @text));
is($r->{status}, 401, 'auth_request refuses');
is(scalar $engine->lines(qr/^request/), 0, 'the engine hears nothing');

$r = $t->exchange(request('/auth', $big,
                  headers => [ 'Accept: text/plain', 'X-Key: good' ]));
is($r->{body}, $answer, 'auth_request lets pass');
is($t->post('/denied', [ prompt => 'x' ])->{status}, 403, 'deny');

# limits: delayed requests are served whole

my @c = map { my $c = $t->client();
              $c->send(request('/limited', $big, @text));
              $c } 1 .. 4;
is($_->read_answer()->{body}, $answer, 'delayed by limit_req') for @c;

my $c = $t->client();
$c->send(request('/few', form([ prompt => '!slow 1000 20' ])));
$c->read_until(qr/t1/);
is($t->post('/few', [ prompt => 'x' ])->{status}, 503, 'limit_conn');
$c->reset();
ok(wait_for(sub { $t->post('/few', [ prompt => 'x' ])->{status} == 200 }),
   'released when the client leaves');

$r = $t->post('/rate', [ prompt => '!slow 20 1' ]);
like($r->{body}, qr/\[DONE\]/, 'limit_rate does not hold a stream back');

# compression: whole, and without waiting for the end

$r = $t->post('/gzip', [ prompt => 'x' ],
              headers => [ 'Accept-Encoding: gzip' ]);
is($r->{h}{'content-encoding'}, 'gzip', 'compressed');
my $plain;
gunzip(\$r->{body} => \$plain);
like($plain // '', qr/prompt=x.*\[DONE\]\n\n\z/s, 'whole');

$c = $t->client();
$c->send(request('/gzip', form([ prompt => '!silent 1' ]),
                 headers => [ 'Accept-Encoding: gzip' ]));
my $head = $c->read_head();
ok(length($c->read_piece($head) // '') > 0, 'flushed with each event');
$c->reset();

# error pages are for errors of nginx; ours stay as they are

$r = $t->post('/pages', [ top_p => 'x' ]);
is($r->{status}, 400, 'our error');
is(json($r->{body})->{error}{param}, 'top_p', 'is not replaced');

$r = $t->post('/pages', [ prompt => 'x' x 2000 ]);
is($r->{status}, 404, "nginx's own 413 is (by a page that is not there)");
is($t->post('/pages', [ prompt => 'x' ], @text)->{body}, $answer,
   'and a good one goes through');

# a proxy in front: X-Accel-Buffering makes it pass on what comes

$c = $t->client();
$c->send(request('/proxied/v', form([ prompt => '!silent 2' ])));
ok(defined $c->read_until(qr/"content":"/), 'a proxy passes on at once');
my $cancels = $engine->lines(qr/^cancel/);
$c->reset();
ok($engine->wait_lines(qr/^cancel/, $cancels + 1),
   'and tells that its client has left');

# HTTP/2, and TLS: tokens arrive before the end

my @urls = ([ 'h2c', '--http2-prior-knowledge', "http://127.0.0.1:$h2/v" ]);

push @urls, ([ 'h2 over TLS', '--http2', "https://127.0.0.1:$tls/v" ],
             [ 'HTTP/1.1 over TLS', '--http1.1', "https://127.0.0.1:$tls/v" ])
    if $have_tls;

for my $case (@urls) {
    my ($name, $option, $url) = @$case;
    my $out = "$t->{dir}/stream.out";

    unlink($out);
    $cancels = $engine->lines(qr/^cancel/);

    $pid = spawn("$t->{dir}/curl.err", 'curl', '-skN', $option, '-o', $out,
                 '-F', 'prompt=!silent 2', $url);

    ok(wait_for(sub { VLM::Test::slurp($out) =~ /"content":"/ }),
       "$name: tokens arrive while the answer goes on");

    kill('TERM', $pid);
    reap($pid, 5);
    ok($engine->wait_lines(qr/^cancel/, $cancels + 1),
       "$name: cancelled when the client leaves");

    my $file = $t->write_file('big.bin', 'z' x 1_000_000);
    my ($rc, $got) = $t->curl('-k', $option, '-F', "image=\@$file", '-F',
        'prompt=x', '-H', 'Accept: text/plain', $url);
    is($rc, 0, "$name: an upload of 1 MB");
    like($got, qr/pictures=1;sha=\w{8};prompt=x\n\z/, "$name: its answer");

    # curl loses any early answer to an upload over HTTP/2, nginx's own too

    next if $option ne '--http1.1';

    ($rc, $got) = $t->curl('-k', $option, (map { ('-F', "image=\@$file") }
                                           1 .. 5), $url);
    like($got, qr/"code":"payload_too_large"/, "$name: too large");
}

# many streams on one connection: all are served, and cancelled together
# (over TLS, and without -F, with which curl is not up to it)

if ($have_tls) {
    my @many = ('curl', '-skNZ', '--parallel-max', 20, '--http2', '-o',
                "$t->{dir}/many_#1", '-H', 'Content-Type: ' . form_type(),
                "https://127.0.0.1:$tls/v?[1-20]", '--data-binary');
    my $count = sub {
        my ($re) = @_;
        return scalar grep { VLM::Test::slurp("$t->{dir}/many_$_") =~ $re }
                           1 .. 20;
    };

    my $file = $t->write_file('short.body', form([ prompt => '!slow 20 5' ]));
    $pid = spawn("$t->{dir}/curl.err", @many, "\@$file");
    is(reap($pid, 30), 0, 'twenty streams on a connection');
    is($count->(qr/t19.*data: \[DONE\]\n\n\z/s), 20, 'all whole');

    $cancels = $engine->lines(qr/^cancel/);
    unlink(glob("$t->{dir}/many_*"));

    $file = $t->write_file('long.body', form([ prompt => '!slow 1000 20' ]));
    $pid = spawn("$t->{dir}/curl.err", @many, "\@$file");
    ok(wait_for(sub { $count->(qr/t1/) == 20 }), 'twenty at once');
    kill('KILL', $pid);
    reap($pid, 5);
    ok($engine->wait_lines(qr/^cancel/, $cancels + 20), 'all cancelled');
    is($t->post('/v', [ prompt => 'x' ], @text)->{body}, $answer,
       'a good request afterwards');
}

$t->done();
