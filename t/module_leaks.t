#!/usr/bin/perl

# Thousands of requests of each kind: descriptors and memory of the worker
# stay what they were.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;

my $t = VLM::Test->new();
my $engine = $t->engine('a');

$t->nginx(http => 'keepalive_requests 100000; access_log off;',
          locations => <<'EOF_CONF');
location /v {
    vlm_pass unix:%%DIR%%/a.sock;
}
EOF_CONF

my ($worker) = $t->workers();
my $n = $ENV{VLM_LONG} ? 20_000 : 1000;
my @text = (headers => [ 'Accept: text/plain' ]);

my %kinds = (
    'small forms' => sub {
        my ($c) = @_;
        $c->send(request('/v', form([ prompt => 'x' ]), @text));
        return $c->read_answer()->{status} == 200;
    },
    'pictures, in chunks' => sub {
        my ($c) = @_;
        $c->send(request('/v', form([ image => file('a', 'x' x 20_000) ]),
                         chunked => 5000));
        return $c->read_answer()->{status} == 200;
    },
    'bad forms' => sub {
        my ($c) = @_;
        $c->send(request('/v', form([ top_p => 'x' ])));
        return $c->read_answer()->{status} == 400;
    },
    "the engine's errors" => sub {
        my ($c) = @_;
        $c->send(request('/v', form([ prompt => '!error 400 a b c' ])));
        return $c->read_answer()->{status} == 400;
    },
    'clients that leave' => sub {
        my ($c) = @_;
        $c = $t->client();
        $c->send(request('/v', form([ prompt => '!silent 1' ])));
        my $ok = defined $c->read_until(qr/"content":"/);
        $c->reset();
        return $ok;
    },
    'clients that leave while uploading' => sub {
        my ($c) = @_;
        $c = $t->client();
        $c->send(substr(request('/v', form([ prompt => 'x' x 5000 ])), 0,
                        3000));
        $c->reset();
        return 1;
    },
);

sub descriptors { scalar(() = glob("/proc/$worker/fd/*")) }

sub memory {
    my ($kb) = VLM::Test::slurp("/proc/$worker/smaps_rollup")
               =~ /^Private_Dirty:\s+(\d+)/m;
    return $kb;
}

for my $kind (sort keys %kinds) {
    my ($c, $good) = ($t->client(), 0);

    # what is allocated once is allocated now

    $kinds{$kind}->($c) for 1 .. 200;

    my ($fds, $kb) = (descriptors(), memory());

    for (1 .. $n) {
        $good += $kinds{$kind}->($c);
    }

    is($good, $n, "$kind: all answered");
    ok(wait_for(sub { descriptors() <= $fds + 1 }), "$kind: descriptors");

    # a sanitizer keeps for a while what was freed
    cmp_ok(memory() - $kb, '<', 1024, "$kind: memory") if !$t->sanitized();

    $c->close();
}

is(($t->workers())[0], $worker, 'it is still the same worker');
is($t->post('/v', [ prompt => 'x' ])->{status}, 200, 'and serves');

$t->done();
