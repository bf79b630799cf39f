#!/usr/bin/perl

# An engine that is stopped while it has requests: it costs its connection,
# nothing else.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;
use Time::HiRes qw/ sleep /;

my $t = VLM::Test->new();
my $engine = $t->engine('a');
my $deaf = $t->engine('deaf');

$t->nginx(
    http => 'vlm_arena_size 16m; vlm_max_requests 4; vlm_max_image_size 4m;',
    locations => <<'EOF_CONF');
location /v {
    vlm_pass unix:%%DIR%%/a.sock;
    vlm_read_timeout 500ms;
    vlm_connect_timeout 300ms;
}

location /deaf {
    vlm_pass unix:%%DIR%%/deaf.sock;
    vlm_max_tokens 100000;
    vlm_read_timeout 2s;
    vlm_connect_timeout 20s;
}
EOF_CONF

sub lost { scalar(() = $t->log() =~ /is lost with/g) }

sub send_slow {
    my ($prompt, @fields) = @_;
    return send_to('/v', $prompt, @fields);
}

sub send_to {
    my ($uri, $prompt, @fields) = @_;

    my $c = $t->client();
    $c->send(request($uri, form([ prompt => $prompt, @fields ])));
    return $c;
}

my $large = file('a.jpg', 'x' x 3_500_000);

is($t->post('/v', [ prompt => 'x' ])->{status}, 200, 'it works');

# an engine without requests may sleep

$engine->signal('STOP');
sleep(1.5);
$engine->signal('CONT');
is(lost(), 0, 'stopped with nothing to do');

# one that acknowledges a cancel late is not given up

my $c = send_to('/deaf', '!deaf 1000 1000 5');
$c->read_until(qr/t1/);
$c->reset();
ok($deaf->wait_lines(qr/^cancelled /), 'an engine that is hard of hearing');
is(lost(), 0, 'is not given up');

# stopped in the middle of answers, and before one

my $peers = $engine->lines(qr/^peer closed /);
my $stream = send_slow('!slow 1000 20');
my $silent = send_slow('!progress', image => $large);
my $held = send_slow('!hold', image => $large);

ok($stream->read_until(qr/t1"/), 'a stream runs');
ok($engine->wait_lines(qr/^request .*!progress/), 'another request waits');
is($held->read_answer()->{status}, 200, 'a third one is done');

$engine->signal('STOP');

my $late = send_slow('What?', image => $large);
my $four = send_slow('x');

is($late->read_answer()->{status}, 504, 'submitted to a stopped engine');
is($silent->read_answer()->{status}, 504, 'waited for a stopped engine');
ok($stream->read_until(qr/"code":"engine_timeout"/),
   'streamed by a stopped engine');

# all slots wait for its acknowledgement

is($four->read_answer()->{status}, 504, 'the fourth slot');
my $fifth = $t->post('/v', [ prompt => 'x' ])->{status};
ok($fifth == 503 || lost(), 'there are no more');

ok($t->wait_log(qr/is lost with 4 requests: it did not move for \d+ ms/),
   'it is given up');
is(lost(), 1, 'once');

is($t->post('/v', [ prompt => 'x' ])->{status}, 502,
   'while it is stopped there is no service');

$engine->signal('CONT');

ok(wait_for(sub { $t->post('/v', [ prompt => 'x' ])->{status} == 200 }),
   'service returns by itself');
ok($engine->wait_lines(qr/^peer closed /, $peers + 1),
   'the engine has noticed');

# every slot and every region is there again

my @all = map { send_slow('!slow 5 20', image => $large) } 1 .. 4;
my @status = map { $_->read_answer()->{status} } @all;

ok(wait_for(sub {
       @all = map { send_slow('!slow 5 20', image => $large) } 1 .. 4;
       @status = map { $_->read_answer()->{status} } @all;
       return join(' ', @status) eq '200 200 200 200';
   }), 'four large uploads at once') or diag("@status");

is(scalar $engine->lines(qr/WRONG|bad record/), 0, 'every sum was right');

# given up with a request that is younger than its own timeout

my $first = send_slow('!progress');
ok($engine->wait_lines(qr/^request .*!progress/, 2), 'a request');
$engine->signal('STOP');
my $n = lost();
my @more;

for (1 .. 40) {
    push @more, send_slow('x') if @more < 3 && $_ % 4 == 0;
    sleep(0.1);
    last if lost() > $n;
}

is(lost(), $n + 1, 'it is given up again');

for my $c ($first, @more) {
    my $r = $c->read_answer();
    my $id = $r->{h}{'x-request-id'} // '';

    # on a slow machine one may have come after that

    next if $c != $first
            && $t->log() =~ /did not connect within .*request id: "\Q$id\E"/;

    is($r->{status}, 504, 'its requests: 504');
    is(json($r->{body})->{error}{code}, 'engine_timeout', 'engine_timeout');
}

$engine->signal('CONT');
ok(wait_for(sub { $t->post('/v', [ prompt => 'x' ])->{status} == 200 }),
   'service returns again');

# it is the worker that was stopped: nothing is wrong with the engine

$n = lost();
$stream = send_slow('!slow 100 20');
ok($stream->read_until(qr/t1"/), 'a stream runs');
my ($worker) = $t->workers();
kill('STOP', $worker);
sleep(1.5);
kill('CONT', $worker);
ok($stream->read_until(qr/t99"|engine_timeout/), 'it goes on or is overdue');
is(lost(), $n, 'the engine is not blamed');

# killed instead of continued: its regions are free as soon as nobody listens

$first = send_slow('!progress', image => $large);
ok($engine->wait_lines(qr/^request .*!progress/, 3), 'a request');
$engine->signal('STOP');
ok(wait_for(sub { lost() == $n + 1 }), 'given up');
$engine->kill_now();
$engine->start();

ok(wait_for(sub {
       @all = map { send_slow('!slow 5 20', image => $large) } 1 .. 4;
       @status = map { $_->read_answer()->{status} } @all;
       return join(' ', @status) eq '200 200 200 200';
   }), 'four large uploads at once') or diag("@status");

# one that moves but never acknowledges a cancel

$n = lost();
$c = send_to('/deaf', '!deaf never 100000 5', image => $large);
$c->read_until(qr/t1/);
my $beside = send_to('/deaf', '!slow 100000 5');
$beside->read_until(qr/t1/);
$c->reset();

ok($t->wait_log(qr/is lost with 2 requests: it did not acknowledge a cancel (?#
               )within 4000 ms/), 'a deaf engine is given up');
is(lost(), $n + 1, 'once');
ok($beside->read_until(qr/"code":"engine_died"/), 'what ran beside it ends');
ok(wait_for(sub { $t->post('/deaf', [ prompt => 'x' ])->{status} == 200 }),
   'service returns by itself');
ok($deaf->wait_lines(qr/^peer closed /), 'the engine has noticed');

ok(wait_for(sub {
       @all = map { send_to('/deaf', '!slow 5 20', image => $large) } 1 .. 4;
       @status = map { $_->read_answer()->{status} } @all;
       return join(' ', @status) eq '200 200 200 200';
   }), 'every slot and region is there again') or diag("@status");

$t->done();
