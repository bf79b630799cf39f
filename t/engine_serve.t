#!/usr/bin/perl

# vlm-engine as a process: its socket, signals, systemd's notification.

use warnings;
use strict;

use File::Temp qw/ tempdir /;
use IO::Socket::UNIX;
use POSIX qw/ WNOHANG /;
use Socket qw/ SOCK_DGRAM SOCK_STREAM /;
use Test::More;
use Time::HiRes qw/ time sleep /;

my $build = $ENV{VLM_BUILD} // 'build';
my $engine = "$build/vlm-engine";
my $dir = tempdir('vlm-engine-XXXXXX', TMPDIR => 1, CLEANUP => 1);
my $socket = "$dir/engine.sock";
my %running;

plan(skip_all => "no $engine") unless -x $engine;

END { kill('KILL', keys %running) if %running }


# Starts an engine; returns its pid.  Its log goes to $dir/$name.log.

sub start {
    my ($name, @args) = @_;

    my $pid = fork() // die "fork: $!";

    if (!$pid) {
        open(STDERR, '>', "$dir/$name.log");
        { no warnings; exec($engine, @args); }
        POSIX::_exit(127);
    }

    $running{$pid} = 1;

    return $pid;
}


sub slurp {
    my ($name) = @_;
    open(my $f, '<', $name) or return '';
    local $/;
    return scalar(<$f>) // '';
}


sub wait_for {
    my ($what) = @_;

    for (my $end = time() + 60; time() < $end; sleep(0.01)) {
        my $got = $what->();
        return $got if $got;
    }

    return;
}


# The exit status of a process, or "signal N", or undef after a minute.

sub ended {
    my ($pid) = @_;

    wait_for(sub { waitpid($pid, WNOHANG) == $pid }) or return;
    my $status = $?;
    delete $running{$pid};

    return $status & 127 ? 'signal ' . ($status & 127) : $status >> 8;
}


sub ready {
    my ($name) = @_;
    return wait_for(sub { slurp("$dir/$name.log") =~ /\bready$/m });
}


my @serve = ('--model', 'models/demo', '--socket', $socket);


# ---- ready, drain ----

for my $case (["$dir/notify.sock", "$dir/notify.sock", 'a path'],
              ["\0vlm-test-$$", "\@vlm-test-$$", 'an abstract name'])
{
    my ($local, $name, $what) = @$case;

    my $notify = IO::Socket::UNIX->new(Type => SOCK_DGRAM, Local => $local)
        or die "socket: $!";

    local $ENV{NOTIFY_SOCKET} = $name;
    my $pid = start('notify', @serve);

    $notify->recv(my $message, 100);
    is($message, 'READY=1', "ready is told to $what");
    ok(-S $socket, 'the socket is there');
    is((stat($socket))[2] & 0777, 0660, 'with its permissions');

    kill('TERM', $pid);
    $notify->recv($message, 100);
    is($message, 'STOPPING=1', "stopping is told to $what");
    is(ended($pid), 0, 'SIGTERM: exit status');
    ok(!-e $socket, 'SIGTERM: the socket is gone');
    like(slurp("$dir/notify.log"), qr/drained, exiting$/m, 'drained');
}

{
    local $ENV{NOTIFY_SOCKET} = 'nonsense';
    my $pid = start('nonsense', @serve);
    ok(ready('nonsense'), 'a bad NOTIFY_SOCKET is no reason not to serve');
    like(slurp("$dir/nonsense.log"), qr/\[warn\].*NOTIFY_SOCKET/,
         'but it is told');
    kill('USR1', $pid);
    ok(wait_for(sub { slurp("$dir/nonsense.log")
           =~ /requests: 0 running, 0 queued\n.*embedding cache: encoded 0,/ }),
       'SIGUSR1 logs counters');
    kill('INT', $pid);
    is(ended($pid), 0, 'SIGINT drains too');
}


# ---- started without stdin, stdout, stderr ----

{
    my $pid = fork() // die "fork: $!";

    if (!$pid) {
        exec('/bin/sh', '-c', 'exec "$@" <&- >&- 2>&-', 'sh', $engine, @serve)
            or POSIX::_exit(127);
    }

    $running{$pid} = 1;
    ok(wait_for(sub { -S $socket }), 'no standard descriptors: it serves');

    my @names = map { readlink("/proc/$pid/fd/$_") // '' } 0 .. 2;
    is("@names", '/dev/null /dev/null /dev/null',
       'and nothing else has their numbers');

    kill('TERM', $pid);
    is(ended($pid), 0, 'and ends');
}


# ---- who listens ----

my $first = start('first', @serve, '--socket-mode', '0600', '--log-level',
                  'debug');
ok(ready('first'), 'the first is ready');
is((stat($socket))[2] & 0777, 0600, '--socket-mode');
like(slurp("$dir/first.log"), qr/listening on \Q$socket\E$/m, 'it listens');
like(slurp("$dir/first.log"),
     qr/model "demo" \(qwen2_vl\) on cpu\/\w+: weights 5\.7 MiB, KV cache/,
     'what it needs is told');
like(slurp("$dir/first.log"), qr/loading: 100 %/, 'so is the loading');

my $second = start('second', @serve);
is(ended($second), 1, 'a second one on the same socket ends');
like(slurp("$dir/second.log"), qr/^vlm-engine: .*\Q$socket\E/m,
     'and says why');
ok(-S $socket, 'the socket stays');

my $visitor = IO::Socket::UNIX->new(Type => SOCK_STREAM, Peer => $socket);
ok($visitor, 'it can be connected to');
print $visitor "GET / HTTP/1.0\r\n\r\n" . 'x' x 200;
$visitor->flush();
ok(wait_for(sub { slurp("$dir/first.log") =~ /\[error\].*worker/ }),
   'a stranger is logged');
1 while sysread($visitor, my $refusal, 1000);
pass('and refused');
ok(kill(0, $first), 'and the engine goes on');

kill('KILL', $first);
is(ended($first), 'signal 9', 'killed');
ok(-S $socket, 'a stale socket is left');

my $third = start('third', @serve, '--served-model-name', 'shapes');
ok(ready('third'), 'a new engine takes its place');
like(slurp("$dir/third.log"), qr/model "shapes"/, '--served-model-name');


# ---- ends ----

# somebody is connected: it does not matter
$visitor = IO::Socket::UNIX->new(Type => SOCK_STREAM, Peer => $socket);

kill('TERM', $third);
is(ended($third), 0, 'SIGTERM with a connection');
ok(!-e $socket, 'no socket is left');

# opening its config.json blocks, so it is loading for ever

mkdir("$dir/slow");
POSIX::mkfifo("$dir/slow/config.json", 0600) or die "mkfifo: $!";
my $loading = start('loading', '--model', "$dir/slow", '--socket', $socket);
ok(wait_for(sub { slurp("$dir/loading.log") =~ /listening/ }),
   'the socket is open before the model is loaded');
kill('TERM', $loading);
is(ended($loading), 0, 'SIGTERM while loading');
ok(!-e $socket, 'SIGTERM while loading: no socket is left');

mkdir("$dir/empty");
my $broken = start('broken', '--model', "$dir/empty", '--socket', $socket);
is(ended($broken), 1, 'a broken model: exit status');
like(slurp("$dir/broken.log"), qr/^vlm-engine: .*config\.json.*No such/m,
     'a broken model: message');
ok(!-e $socket, 'a broken model: no socket is left');

my $nowhere = start('nowhere', '--model', 'models/demo', '--socket',
                    "$dir/none/engine.sock");
is(ended($nowhere), 1, 'a socket that cannot be made: exit status');
like(slurp("$dir/nowhere.log"), qr/^vlm-engine: .*No such file/m,
     'a socket that cannot be made: message');

my $large = start('large', @serve, '--kv-cache-memory', '900000g');
is(ended($large), 1, 'too much memory: exit status');
like(slurp("$dir/large.log"), qr/^vlm-engine: not enough memory: the model/m,
     'too much memory: message');

done_testing();
