#!/usr/bin/perl

# Room for uploads: what fits, who gives way, and that it is given back.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;
use Time::HiRes qw/ sleep time /;

my $t = VLM::Test->new();
my $engine = $t->engine('a');

$t->nginx(http => <<'EOF_HTTP', locations => <<'EOF_CONF');
vlm_arena_size 3m;
vlm_max_requests 6;
vlm_max_request_size 1m;
vlm_max_image_size 1m;
vlm_queue_timeout 1s;
client_body_timeout 60s;
EOF_HTTP
location /v {
    vlm_pass unix:%%DIR%%/a.sock;
}
EOF_CONF

my @text = (headers => [ 'Accept: text/plain' ]);
my $body = form([ image => file('a.jpg', 'x' x 900_000), prompt => 'x' ]);
my $whole = request('/v', $body, @text);
my $chunked = request('/v', $body, @text, chunked => 10_000);

# the first half of an upload, taken by the worker

sub half {
    my ($bytes) = @_;

    my $c = $t->client();
    $c->send(substr($bytes, 0, 500_000));
    return $c;
}

sub rest {
    my ($c, $bytes) = @_;

    $c->send(substr($bytes, 500_000));
    my $r = $c->read_answer();
    $c->close();
    return $r;
}

# the memory of the arena, in bytes

sub used {
    my ($worker) = $t->workers();

    for my $fd (glob("/proc/$worker/fd/*")) {
        next if (readlink($fd) // '') !~ m!^/memfd:vlm-arena!;
        return (stat($fd))[12] * 512;
    }

    return -1;
}

is($t->exchange($whole)->{status}, 200, 'an upload');
ok(wait_for(sub { my $n = used(); $n >= 0 && $n < 100_000 }),
   'its memory is given back') or diag(used());

# three uploads that have told their length fit, a fourth does not

my @c = map { half($whole) } 1 .. 3;
ok(wait_for(sub { used() > 1_200_000 }), 'three half uploads are kept')
    or diag(used());

my $r = $t->exchange($whole);
is($r->{status}, 503, 'a fourth');
like($r->{h}{'retry-after'}, qr/^[1-9]\d*$/, 'Retry-After');
is(json($r->{body})->{error}{code}, 'arena_full', 'its code');

# it is told before it sends its body

my $c = $t->client();
$c->send(request('/v', '', length => 900_000,
                 headers => [ 'Expect: 100-continue' ]));
is($c->read_head()->{status}, 503, 'without 100');
$c->close();

# a small one fits always

is($t->post('/v', [ prompt => 'x' ])->{status}, 200, 'a small one');

# half uploads never wait for each other

is(rest($_, $whole)->{status}, 200, 'a half upload goes on') for @c;
ok(wait_for(sub { used() < 100_000 }), 'memory is given back');
is($t->exchange($whole)->{status}, 200, 'room again');

# who leaves in the middle leaves room

@c = map { half($whole) } 1 .. 3;
ok(wait_for(sub { used() > 1_200_000 }), 'three half uploads');
$_->reset() for @c;
ok(wait_for(sub { used() < 100_000 }), 'gone, and their memory');
is($t->exchange($whole)->{status}, 200, 'room again');

# chunked: when they are in each other's way the youngest gives way

@c = map { my $c = half($chunked); sleep(0.1); $c } 1 .. 4;
my @status = map { rest($_, $chunked)->{status} } @c;
is($status[0], 200, 'chunked: the oldest is served');
is(scalar(grep { $_ == 200 || $_ == 503 } @status), 4,
   "chunked: all are answered: @status");
ok((grep { $_ == 200 } @status) >= 2, 'chunked: more than one is served');
ok(wait_for(sub { used() < 100_000 }), 'memory is given back');
is($t->exchange($chunked)->{status}, 200, 'room again');

# one that has been silent for 5 seconds loses its room to a newcomer

my $old = half($whole);
sleep(0.3);
my @young = map { half($whole) } 1 .. 2;
my $end = time() + 5.5;

while (time() < $end) {
    sleep(0.5);
    $_->send('x') for @young;
}

is($t->exchange($whole)->{status}, 200, 'a newcomer gets in');
$r = $old->read_answer();
is($r->{status}, 408, 'the one that was silent longest loses its room');
$_->close() for $old, @young;
ok(wait_for(sub { used() < 100_000 }), 'memory is given back');

# as many requests as allowed

@c = map { my $c = $t->client();
           $c->send(request('/v', form([ prompt => '!slow 1000 20' ])));
           $c->read_until(qr/t1/);
           $c } 1 .. 6;
$r = $t->post('/v', [ prompt => 'x' ]);
is($r->{status}, 503, 'one request more than vlm_max_requests');
like($r->{h}{'retry-after'}, qr/^[1-9]\d*$/, 'Retry-After');
$_->reset() for @c;
ok(wait_for(sub { $t->post('/v', [ prompt => 'x' ])->{status} == 200 }),
   'room for another one');

# an engine that goes on reading keeps the room until it says that it is done

my $release = form([ image => file('a', 'x' x 900_000), prompt => '!hold' ]);
is($t->exchange(request('/v', $release))->{status}, 200, 'released at the end');
ok(wait_for(sub { used() < 100_000 }), 'memory is given back');

my $deaf = form([ image => file('a', 'x' x 900_000),
                  prompt => '!deaf never 500 20' ]);

for (1 .. 3) {
    $c = $t->client();
    $c->send(request('/v', $deaf));
    $c->read_until(qr/t1/);
    $c->reset();
}

$r = $t->exchange($whole);
ok($r->{status} == 200 || $r->{status} == 503,
   "beside an engine that does not listen: $r->{status}");

$engine->kill_now();
sleep(0.15);
$engine->start();

is($t->exchange($whole)->{status}, 200, 'its death frees everything');
ok(wait_for(sub { used() < 100_000 }), 'memory is given back')
    or diag(used());

is(scalar $engine->lines(qr/WRONG|bad record/), 0, 'every sum was right');

# more than this machine has addresses for

is($t->stop('QUIT'), 0, 'nginx quits');
$t->nginx(http => 'vlm_arena_size 9999999g;', locations => <<'EOF_CONF');
location /v {
    vlm_pass unix:%%DIR%%/a.sock;
}
EOF_CONF

is($t->post('/v', [ prompt => 'x' ])->{status}, 502, 'no arena');
like($t->log(), qr/mmap\(\) of the arena of 10\d{15} bytes failed: Cannot/,
     'and the log says why');

$t->done();
