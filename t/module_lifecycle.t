#!/usr/bin/perl

# Reload, upgrade, quit and crash of nginx with requests in flight.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;
use Time::HiRes qw/ sleep time /;

my $t = VLM::Test->new();
my $engine = $t->engine('a');

my %conf = (workers => 2, locations => <<'EOF_CONF');
location /v {
    vlm_pass unix:%%DIR%%/a.sock;
    vlm_connect_timeout 20s;
}
EOF_CONF

$t->nginx(%conf);

my @text = (headers => [ 'Accept: text/plain' ]);

sub good {
    my ($name) = @_;
    my $r = $t->post('/v', [ prompt => 'good' ], @text);
    return is($r->{body}, "roles=user;pictures=0;sha=;prompt=good\n",
              "$name: a good request");
}

sub stream {
    my ($n, $ms) = @_;

    my $c = $t->client();
    $c->send(request('/v', form([ prompt => "!slow $n $ms" ]), @text));
    $c->read_until(qr/t1/) // die 'no answer';

    return $c;
}

# of the rest of such a stream

sub whole {
    my ($c, $n, $name) = @_;

    my $last = $n - 1;
    ok(defined $c->read_until(qr/t$last.*\r\n0\r\n\r\n/s), $name);
    $c->close();
}

# of an engine that has not been restarted since $mark in its log

my $mark = 0;

sub open_peers {
    my $log = substr($engine->log(), $mark);
    my $opened = () = $log =~ /^peer ready/mg;
    my $closed = () = $log =~ /^peer closed/mg;
    return $opened - $closed;
}

good('started');

# reload

my @streams = map { stream(40, 25) } 1 .. 6;
my @old = $t->workers();

ok($t->reload(), 'reloaded');
good('reloaded');
whole($_, 40, 'a stream over a reload') for @streams;

ok(wait_for(sub { !grep { kill(0, $_) } @old }),
   'the old workers leave when their streams are done');

# an upload over a reload

my $bytes = request('/v', form([ prompt => 'x' x 10_000 ]), @text);
my $c = $t->client();
$c->send(substr($bytes, 0, 5000));
@old = $t->workers();
sleep(0.05);
ok($t->reload(), 'reloaded while a client uploads');
$c->send(substr($bytes, 5000));
my $r = $c->read_answer();
is($r->{status}, 200, 'an upload over a reload');
$c->close();
ok(wait_for(sub { !grep { kill(0, $_) } @old }), 'the old workers leave');

# many reloads under load: nothing is left behind at the engine

my $fds = () = glob("/proc/$engine->{pid}/fd/*");

for my $i (1 .. 10) {
    my @many = map { stream(5, 5) } 1 .. 4;
    $t->signal('HUP');
    sleep(0.02);
    whole($_, 5, "reload $i") for @many;
}

good('ten reloads');

ok(wait_for(sub { $t->workers() == 2 && open_peers() <= 2 }),
   'the engine has no more peers than there are workers')
    or diag(open_peers());
ok(wait_for(sub { (() = glob("/proc/$engine->{pid}/fd/*")) <= $fds + 10 }),
   'nor their descriptors');

# a worker is killed: its streams end, the others go on

@streams = map { stream(100, 20) } 1 .. 8;
my ($victim) = $t->workers();
$t->expect_errors(qr/worker process $victim exited on signal 9/);
my $closed = $engine->lines(qr/^peer closed/);

kill('KILL', $victim);

ok($engine->wait_lines(qr/^peer closed/, $closed + 1),
   'the engine notices that a worker died')
    or diag($engine->log());

my ($cut, $whole) = (0, 0);

for my $c (@streams) {
    defined $c->read_until(qr/t99.*\r\n0\r\n\r\n/s) ? $whole++ : $cut++;
    $c->close();
}

is($cut + $whole, 8, "of eight streams $cut were on the dead worker");
good('a worker died');

# the same connections go on while an engine is restarted and nginx reloaded

$c = $t->client();

for my $i (1 .. 3) {
    $c->send(request('/v', form([ prompt => "x$i" ]), @text));
    is($c->read_answer()->{body}, "roles=user;pictures=0;sha=;prompt=x$i\n",
       "keepalive $i");
    $engine->stop();
    $mark = length($engine->log());
    $engine->start();
}

$c->close();

is($t->stop('QUIT', 20), 0, 'nginx quits');
ok(wait_for(sub { open_peers() == 0 }), 'no peer is left');

# upgrade of the binary, for which nginx must be a daemon

unlink("$t->{dir}/nginx.pid");
$t->nginx(%conf, daemon => 1);

@streams = map { stream(40, 25) } 1 .. 4;
my $old = $t->{nginx};

kill('USR2', $old);
ok(wait_for(sub { -s "$t->{dir}/nginx.pid.oldbin" && $t->pid()
                  && $t->pid() != $old && $t->workers($t->pid()) == 2 }),
   'a new master and its workers') or diag($t->log());
my $new = $t->pid();
push @{$t->{others}}, $new;

good('upgraded');
kill('QUIT', $old);
whole($_, 40, 'a stream over an upgrade') for @streams;
is(reap($old, 20), 0, 'the old master leaves');
good('the old master left');

# quit with streams in flight: they are finished first

@streams = map { stream(40, 25) } 1 .. 4;
kill('QUIT', $new);
whole($_, 40, 'a stream over a quit') for @streams;
is(reap($new, 20), 0, 'nginx has quit');
delete $t->{nginx};
$t->{others} = [];
ok(wait_for(sub { open_peers() == 0 }), 'no peer is left');

# stop at once

unlink("$t->{dir}/nginx.pid");
$t->nginx(%conf);
@streams = map { stream(500, 20) } 1 .. 4;

# a master kills what takes over a second, as the search for leaks may do

$t->expect_errors(qr/worker process \d+ exited on signal 9/)
    if $t->sanitized();
is($t->stop('TERM', 10), 0, 'stopped at once');
$_->close() for @streams;
ok(wait_for(sub { open_peers() == 0 }), 'no peer is left');

# workers that may not wait for ever

$t->nginx(%conf, main => 'worker_shutdown_timeout 1s;');
@streams = map { stream(500, 20) } 1 .. 4;
my $start = time();
is($t->stop('QUIT', 10), 0, 'worker_shutdown_timeout');
cmp_ok(time() - $start, '<', 6, 'in time');
$_->close() for @streams;

# one process

$t->nginx(%conf, master => 0, workers => 1);
good('one process');
@streams = map { stream(20, 20) } 1 .. 2;
whole($_, 20, 'one process: a stream') for @streams;
is($t->stop('QUIT', 10), 0, 'one process quits');

# other event methods, where this nginx has them

for my $method (qw/ poll select /) {
    my ($known) = $t->test_config(%conf, events => "use $method;");

    if (!$known) {
        pass("no $method here");
        next;
    }

    $t->nginx(%conf, events => "use $method;");
    good($method);
    my $c = stream(10, 20);
    whole($c, 10, "$method: a stream");

    my $cancels = $engine->lines(qr/^cancel/);
    $c = stream(500, 20);
    $c->reset();
    ok($engine->wait_lines(qr/^cancel/, $cancels + 1),
       "$method: cancelled when the client leaves");
    is($t->stop('QUIT', 10), 0, "$method: quits");
}

$t->done();
