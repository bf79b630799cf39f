#!/usr/bin/perl

# A worker under strace, during uploads, streams and all that ends them: it
# waits in epoll_wait() and nowhere else, and writes no upload to a file.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;

my $strace = '/usr/bin/strace';

plan(skip_all => 'no strace') if !-x $strace;

my $t = VLM::Test->new();
my $engine = $t->engine('a');
my $h2 = $t->free_port();

$t->nginx(server => "listen 127.0.0.1:$h2 http2;", locations => <<'EOF_CONF');
location /v {
    vlm_pass unix:%%DIR%%/a.sock;
}

location /quick {
    vlm_pass unix:%%DIR%%/a.sock;
    vlm_read_timeout 500ms;
    vlm_connect_timeout 300ms;
}

location /pings {
    vlm_pass unix:%%DIR%%/a.sock;
    vlm_ping_interval 200ms;
}
EOF_CONF

my ($worker) = $t->workers();
my $log = "$t->{dir}/strace.log";
my $tracer = spawn("$t->{dir}/strace.out", $strace, '-y', '-s', 16, '-o', $log,
                   '-p', $worker);

my $attached = wait_for(sub {
    $t->exchange("GET /v HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    return -s $log || VLM::Test::slurp("$t->{dir}/strace.out")
                      =~ /denied|not permitted/;
});

if (!-s $log) {
    kill('TERM', $tracer);
    reap($tracer, 5);
    $t->stop();
    plan(skip_all => 'strace may not attach here');
}

# everything that a worker does

my @text = (headers => [ 'Accept: text/plain' ]);
my $big = file('a.jpg', 'x' x 1_500_000);

for my $uri (qw! /v /v /quick !) {
    my $r = $t->post($uri, [ image => $big, prompt => 'x' ], @text);
    is($r->{status}, 200, "$uri: an upload");

    $r = $t->post($uri, [ image => $big, prompt => 'x' ], chunked => 60_000);
    is($r->{status}, 200, "$uri: an upload in chunks");
}

my @streams = map { my $c = $t->client();
                    $c->send(request('/v', form([ prompt => '!slow 30 10' ])));
                    $c } 1 .. 10;
$_->read_until(qr/t3/) for @streams;
$_->reset() for @streams[0 .. 4];
ok(defined $_->read_until(qr/\[DONE\]/), 'a stream') for @streams[5 .. 9];

is($t->post('/quick', [ prompt => '!silent' ])->{status}, 504, 'silence');

my $c = $t->client();
$c->send(request('/pings', form([ prompt => '!progress' ])));
ok(defined $c->read_until(qr/: ping/), 'a ping');
$c->close();

is($t->post('/v', [ max_tokens => 'x' ])->{status}, 400, 'a bad form');
is($t->post('/v', [ prompt => '!close 2' ])->{status}, 200,
   'an engine that is lost');
is($t->post('/v', [ prompt => 'x' ])->{status}, 200, 'and found');
$engine->kill_now();
is($t->post('/v', [ prompt => 'x' ])->{status}, 502, 'no engine');
$engine->start();
is($t->post('/v', [ prompt => 'x' ])->{status}, 200, 'again');

my $file = $t->write_file('h2.jpg', $big->{bytes});
my ($status) = $t->curl('--http2-prior-knowledge', '-F', "image=\@$file",
                        '-F', 'prompt=x', "http://127.0.0.1:$h2/v");
is($status, 0, 'HTTP/2');

kill('TERM', $tracer);
reap($tracer, 10);

# what it called

my (%calls, @bad);

for my $line (split /\n/, VLM::Test::slurp($log)) {
    my ($call, $args) = $line =~ /^(\w+)\((.*)/ or next;

    $calls{$call}++;

    if ($call =~ /^(?:p?poll|p?select6?|\w*nanosleep|futex|f(?:data)?sync
                      |sync\w*|msync|wait4|waitid|flock|pause
                      |sigtimedwait|rt_sigtimedwait|usleep|io_getevents)$/x)
    {
        push @bad, $line;
    }

    # what it opens can not block

    push @bad, $line
        if $call eq 'socket' && $args !~ /SOCK_NONBLOCK/
           || $call eq 'accept4' && $args !~ /SOCK_NONBLOCK/
           || $call eq 'eventfd2' && $args !~ /EFD_NONBLOCK/
           || $call eq 'accept';

    # files: logs are written, nothing is read

    push @bad, $line
        if $call =~ /^(?:write|pwrite64|writev|pwritev)$/
           && $args =~ m!^\d+<(/[^>]*)>! && $1 !~ m!\.log$|^/memfd:!;
    push @bad, $line
        if $call =~ /^(?:read|pread64|readv|sendfile)$/
           && $args =~ m!^\d+<(/[^>]*)>! && $1 !~ m!^/memfd:!;
    push @bad, $line
        if $call =~ /^open(?:at)?$/ && $args !~ m!"/proc/self/fd/!;
}

is(join("\n", @bad), '', 'no call that blocks, no file but logs');
cmp_ok($calls{epoll_wait} // 0, '>', 50, 'it waits in epoll_wait()');
cmp_ok($calls{recvfrom} // 0, '>', 10, 'the trace is complete: reads');
cmp_ok(($calls{writev} // 0) + ($calls{sendto} // 0), '>', 10,
       'the trace is complete: writes');
diag("calls: " . join(' ', map { "$_ $calls{$_}" } sort keys %calls))
    if $ENV{TEST_VLM_DEBUG};

$t->done();
