#!/usr/bin/perl

# Reload storms, upgrades that are rolled back, and the real engine's end while
# streams run: none is lost, new requests are told what is going on.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use POSIX qw/ WNOHANG /;
use Test::More;
use Time::HiRes qw/ sleep /;

my $build = $ENV{VLM_BUILD} // 'build';
my $t = VLM::Test->new();
my $engine = $t->engine('a');
my $real = "$t->{dir}/real.sock";
my @text = (headers => [ 'Accept: text/plain' ]);

my %conf = (http => 'vlm_max_tokens 100000;', locations => <<'EOF_CONF');
location /v {
    vlm_pass unix:%%DIR%%/a.sock;
    vlm_connect_timeout 20s;
}

location /real {
    vlm_pass unix:%%DIR%%/real.sock;
    vlm_read_timeout 20s;
}
EOF_CONF


sub good {
    my ($name) = @_;
    my $r = $t->post('/v', [ prompt => 'good' ], @text);
    is($r->{body}, "roles=user;pictures=0;sha=;prompt=good\n", $name);
}

sub stream {
    my ($n, $ms) = @_;

    my $c = $t->client();
    $c->send(request('/v', form([ prompt => "!slow $n $ms" ]), @text));
    $c->{head} = $c->read_head();
    return $c;
}

# a stream's text, all of it and in order

sub whole {
    my ($n, @streams) = @_;

    my $text = join(' ', map { "t$_" } 0 .. $n - 1) . "\n";
    my $whole = 0;

    for my $c (@streams) {
        my $got = '';

        while (1) {
            my $piece = $c->read_piece($c->{head}, 60);
            last if !defined $piece;
            $whole++ if $piece eq '' && $got eq $text;
            last if $piece eq '';
            $got .= $piece;
        }

        $c->close();
    }

    return $whole;
}

# workers of a master, those on their way out too

sub all_workers {
    my ($master) = @_;

    return grep { VLM::Test::slurp("/proc/$_/cmdline") =~ /worker process/ }
           split ' ', VLM::Test::slurp("/proc/$master/task/$master/children");
}

# they have ended; an orphan may have become a child of this test

sub gone {
    my (@pids) = @_;

    return wait_for(sub {
        waitpid($_, WNOHANG) for @pids;
        return !grep { kill(0, $_) } @pids;
    }, 60);
}


# twenty reloads while streams begin, run and end

$t->nginx(%conf, workers => 4);
good('four workers');

my %seen = map { $_ => 1 } $t->workers();
my $fds = () = glob("/proc/$engine->{pid}/fd/*");
my @streams;

for (1 .. 20) {
    push @streams, map { stream(60, 20) } 1 .. 2;
    $t->signal('HUP');
    sleep(0.05);
    $seen{$_} = 1 for all_workers($t->{nginx});
}

push @streams, stream(60, 20);
cmp_ok(scalar(keys %seen), '>', 8, 'generations of workers: ' . keys %seen);
is(whole(60, @streams), 41, 'a reload storm: no stream is lost');

ok(wait_for(sub { $t->workers() == 4
                  && all_workers($t->{nginx}) == 4 }, 60),
   'old workers leave');
my %now = map { $_ => 1 } $t->workers();
ok(gone(grep { !$now{$_} } keys %seen), 'all of them');
good('after the storm');
ok(wait_for(sub { (() = glob("/proc/$engine->{pid}/fd/*")) <= $fds + 4 * 5 }),
   'the engine keeps no descriptor of theirs');

# the same as fast as signals can be sent, and an upload through it

my $bytes = request('/v', form([ prompt => 'good',
                                 image => file('a', 'x' x 300_000) ]), @text);
my $c = $t->client();
$c->send(substr($bytes, 0, 1000));
sleep(0.05);
@streams = map { stream(60, 20) } 1 .. 8;
$t->signal('HUP') for 1 .. 20;
$c->send(substr($bytes, 1000));
is($c->read_answer()->{status}, 200, 'signals without a pause: an upload');
is(whole(60, @streams), 8, 'signals without a pause: no stream is lost');
ok(wait_for(sub { all_workers($t->{nginx}) == 4 }, 60), 'old workers leave');
good('after that');
is($t->stop('QUIT'), 0, 'nginx quits');


# an upgrade that is rolled back: the new binary's streams end too

unlink("$t->{dir}/nginx.pid");
$t->nginx(%conf, workers => 4, daemon => 1);

my $old = $t->{nginx};
my @old_streams = map { stream(150, 20) } 1 .. 4;

kill('USR2', $old);
ok(wait_for(sub { -s "$t->{dir}/nginx.pid.oldbin" && $t->pid()
                  && $t->pid() != $old && $t->workers($t->pid()) == 4 }),
   'a new master and its four workers') or diag($t->log());
my $new = $t->pid();
push @{$t->{others}}, $new;

kill('WINCH', $old);
ok(wait_for(sub { $t->workers($old) == 0 }), 'the old workers take no more');
my @new_streams = map { stream(100, 20) } 1 .. 4;
good('the new ones serve');

kill('HUP', $old);
ok(wait_for(sub { $t->workers($old) == 4 }), 'the old master is back');
kill('QUIT', $new);
is(whole(150, @old_streams), 4, "the old workers' streams are whole");
is(whole(100, @new_streams), 4, "the new workers' streams are whole");
ok(gone($new), 'the new master has left');
good('rolled back');
is($t->stop('QUIT'), 0, 'the old master quits');
$t->{others} = [];


# workers that may not wait: their streams are cut and the engine told

unlink("$t->{dir}/nginx.pid");
$t->nginx(%conf, workers => 4, main => 'worker_shutdown_timeout 1s;');

my @patient = map { stream(100_000, 20) } 1 .. 4;
my $short = stream(10, 20);
my @old_workers = $t->workers();
$t->reload();
good('the new workers serve meanwhile');
is(whole(10, $short), 1, 'worker_shutdown_timeout: a short stream is whole');
ok(gone(@old_workers), 'worker_shutdown_timeout: the old workers leave');
is(whole(100_000, @patient), 0, 'worker_shutdown_timeout: long ones are cut');
ok(wait_for(sub {
       my $begun = $engine->lines(qr/^request /);
       return $engine->lines(qr/^(?:done|cancel|error|peer closed) /)
              >= $begun;
   }), 'nothing goes on at the engine');
is($t->stop('QUIT'), 0, 'nginx quits');


# event methods and ways to accept

for my $events ('use epoll; accept_mutex on;', 'use epoll; multi_accept on;',
                'use poll; multi_accept on;', 'use poll; accept_mutex on;')
{
  SKIP: {
        my ($known) = $t->test_config(%conf, events => $events);
        skip("this nginx has no such method: $events", 3) if !$known;

        $t->nginx(%conf, workers => 2, events => $events);
        my @s = map { stream(20, 20) } 1 .. 6;
        $t->reload();
        is(whole(20, @s), 6, "$events: streams over a reload");

        my $cancels = $engine->lines(qr/^cancel/);
        $c = stream(1000, 20);
        $c->reset();
        ok($engine->wait_lines(qr/^cancel/, $cancels + 1),
           "$events: cancelled when the client leaves");
        is($t->stop('QUIT'), 0, "$events: quits");
    }
}


# master_process off: an engine that is killed and comes back

$t->nginx(%conf, master => 0);
@streams = map { stream(1000, 20) } 1 .. 3;
$engine->kill_now();
is(whole(1000, @streams), 0, 'one process: the engine is killed');
is($t->post('/v', [ prompt => 'x' ])->{status}, 502, 'one process: 502');
$engine->start();
ok(wait_for(sub { $t->post('/v', [ prompt => 'x' ])->{status} == 200 }),
   'one process: service returns');
is($t->stop('QUIT'), 0, 'one process: quits');


# the real engine

if (!-x "$build/vlm-engine") {
    diag("no $build/vlm-engine");
    $t->done();
    exit(0);
}

# as slow as it can be, so that its streams last

sub start_real {
    my ($log) = @_;

    local $ENV{VLM_CPU} = 'scalar';
    return spawn("$t->{dir}/$log", "$build/vlm-engine", '--model',
        'models/demo', '--socket', $real, '--prefix-cache', 'off');
}

# never ends by itself: without the end tokens

my @long = (prompt => 'Hello', max_tokens => 300, temperature => '1.5',
            seed => 1, logit_bias => '{"526":-100,"528":-100}');
my @short = (prompt => 'Hello', max_tokens => 2);

sub serves {
    return wait_for(sub { $t->post('/real', [ @short ])->{status} == 200 },
                    60);
}

my $pid = start_real('real.log');
unlink("$t->{dir}/nginx.pid");
$t->nginx(%conf, workers => 2);
ok(serves(), 'the real engine serves');

my $second = start_real('second.log');
is(reap($second, 30), 1 << 8, 'a second one on its socket ends');
like(VLM::Test::slurp("$t->{dir}/second.log"), 
     qr/^vlm-engine: another engine is listening on "\Q$real\E"$/m,
     'and says why');
ok(serves(), 'the first one is unhurt');

# a drain under streams, one of them over a reload

@streams = map {
    my $c = $t->client();
    $c->send(request('/real', form([ @long ]), close => 1));
    $c->read_until(qr/"content":/) // die 'no stream';
    $c;
} 1 .. 3;

$t->reload();
kill('TERM', $pid);

my $r;
my $refused = wait_for(sub {
    $r = $t->post('/real', [ @short ]);
    return $r->{status} != 200;
});

ok($refused, 'new requests are refused');
is($r->{status}, 503, 'while it drains: 503');
like($r->{h}{'retry-after'}, qr/^[1-9]\d*$/, 'with Retry-After');
is(json($r->{body})->{error}{code}, 'engine_draining', 'its code');

for my $c (@streams) {
    ok(defined $c->closed(120), 'a stream ends');
    like($c->{buf}, qr/"finish_reason":"length".*"completion_tokens":300\b
                       .*\[DONE\]/sx, 'whole');
}

is(reap($pid, 60), 0, 'drained: exit status');
ok(!-e $real, 'its socket is gone');
is($t->post('/real', [ @short ])->{status}, 502, 'nobody is there: 502');

$pid = start_real('real2.log');
ok(serves(), 'a new one serves');
kill('TERM', $pid);
is(reap($pid, 60), 0, 'and ends');

$t->done();
