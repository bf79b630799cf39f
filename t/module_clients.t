#!/usr/bin/perl

# Clients that leave, read slowly, or do not read at all.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;
use Time::HiRes qw/ sleep time /;

my $t = VLM::Test->new();
my $engine = $t->engine('a');
my $h2 = $t->free_port();

$t->nginx(
    server => "listen 127.0.0.1:$h2 http2;",
    listen => 'sndbuf=16k',
    http => 'vlm_max_tokens 1000000;',
    locations => <<'EOF_CONF');
location /v {
    vlm_pass unix:%%DIR%%/a.sock;
}

location /patient {
    vlm_pass unix:%%DIR%%/a.sock;
    vlm_ignore_client_abort on;
}

location /slow {
    vlm_pass unix:%%DIR%%/a.sock;
    vlm_output_buffer_size 32k;
    send_timeout 2s;
}

location /pings {
    vlm_pass unix:%%DIR%%/a.sock;
    vlm_ping_interval 200ms;
}
EOF_CONF

my @text = (headers => [ 'Accept: text/plain' ]);

sub cancels { scalar $engine->lines(qr/^cancel /) }

sub good {
    my ($name) = @_;
    my $r = $t->post('/v', [ prompt => 'good' ], @text);
    is($r->{body}, "roles=user;pictures=0;sha=;prompt=good\n",
       "$name: a good request afterwards");
}

# what the engine is doing when the client leaves, and how it leaves

for my $case (
    [ 'queued',    '!queued 20000',  qr/^request /, 0 ],
    [ 'encoding',  '!progress',      qr/^request /, 0 ],
    [ 'silent',    '!silent',        qr/^request /, 0 ],
    [ 'streaming', '!slow 1000 20',  qr/^request /, qr/t3/ ],
    [ 'mid-stream silence', '!silent 3', qr/^request /, qr/chunk.*chunk/s ])
{
    my ($name, $prompt, $seen, $read) = @$case;

    for my $how (qw/ close reset half_close /) {
        my $requests = $engine->lines($seen);
        my $before = cancels();

        my $c = $t->client();
        $c->send(request('/v', form([ prompt => $prompt ])));

        ok($engine->wait_lines($seen, $requests + 1), "$name: submitted");

        if ($read) {
            ok(defined $c->read_until($read), "$name: streaming");
        }

        $c->$how();

        ok($engine->wait_lines(qr/^cancel /, $before + 1),
           "$name, $how: cancelled");

        if ($how eq 'half_close') {
            ok($c->closed(), "$name, $how: closed");
            $c->close();
        }

        good("$name, $how");
    }
}

# before the body is complete nothing was submitted: nothing to cancel

my $before = cancels();
my $requests = $engine->lines(qr/^request /);
my $bytes = request('/v', form([ prompt => 'x' x 1000 ]));
my $c = $t->client();
$c->send(substr($bytes, 0, 500));
sleep(0.1);
$c->close();
good('left while uploading');
is(cancels(), $before, 'left while uploading: no cancel');
is($engine->lines(qr/^request /), $requests + 1,
   'left while uploading: not submitted');

# with a pipelined request behind, the end of the connection is hidden: the
# answer goes nowhere, but the worker is well

$c = $t->client();
$c->send(request('/v', form([ prompt => '!slow 20 20' ]))
         . request('/v', form([ prompt => 'x' ])));
$c->read_until(qr/t2/);
$c->reset();
good('left with a request pipelined');

# vlm_ignore_client_abort

$before = cancels();
$c = $t->client();
$c->send(request('/patient', form([ prompt => '!slow 5 50' ])));
$c->read_until(qr/t0/);
$c->half_close();
my $rest = $c->read_until(qr/\[DONE\]\n\n/);
ok(defined $rest, 'half-closed, and the answer came whole');
is(cancels(), $before, 'not cancelled');
$c->close();

# but one that cannot be written to is gone

$c = $t->client();
$c->send(request('/patient', form([ prompt => '!slow 1000 20' ])));
$c->read_until(qr/t0/);
$c->reset();
ok($engine->wait_lines(qr/^cancel /, $before + 1), 'reset: cancelled');
good('ignored abort');

# pings and a client that leaves between them

$before = cancels();
$c = $t->client();
$c->send(request('/pings', form([ prompt => '!progress' ])));
$c->read_until(qr/: ping\n\n/);
$c->reset();
ok($engine->wait_lines(qr/^cancel /, $before + 1),
   'left between pings: cancelled');

# HTTP/2: the stream is reset, the process is killed

for my $prompt ('!progress', '!slow 1000 20') {
    $before = cancels();
    $requests = $engine->lines(qr/^request /);

    my $pid = spawn("$t->{dir}/curl.err", 'curl', '-sN',
        '--http2-prior-knowledge', '-F', "prompt=$prompt",
        '-o', "$t->{dir}/curl.out", "http://127.0.0.1:$h2/v");

    ok($engine->wait_lines(qr/^request /, $requests + 1), "h2: submitted");
    kill('KILL', $pid);
    reap($pid, 5);
    ok($engine->wait_lines(qr/^cancel /, $before + 1), "h2: cancelled");
    good('h2');
}

# A client that reads nothing for a while, within vlm_output_buffer_size: what
# waits for it is merged, nothing is lost, others are served meanwhile.

sub rss {
    my ($pid) = $t->workers();
    my ($kb) = VLM::Test::slurp("/proc/$pid/status") =~ /^VmRSS:\s+(\d+)/m;
    return $kb;
}

sub read_events {
    my ($c) = @_;

    my $head = $c->read_head();
    my %got = (count => 0, text => '', largest => 0);

    for ( ;; ) {
        my $event = $c->next_event($head, 60);
        last if !defined $event->{data};

        $got{last} = $event->{data};

        my ($content) = $event->{data} =~ /"content":"([^"]*)"/ or next;

        $got{count}++;
        $got{text} .= $content;
        $got{largest} = length($content) if length($content) > $got{largest};
    }

    return \%got;
}

my $slow = $t->client(rcvbuf => 4096);
my $dones = $engine->lines(qr/^done /);
$slow->send(request('/v', form([ prompt => '!flood 3000 20' ])));
ok($engine->wait_lines(qr/^done /, $dones + 1), 'a slow reader: all is said');
good('a slow reader');

my $got = read_events($slow);
$slow->close();
is(length($got->{text}), 60_000, 'a slow reader: nothing is lost');
cmp_ok($got->{count}, '<', 3000, 'a slow reader: merged');
is($got->{last}, '[DONE]', 'a slow reader: its end');

# Far more than that: the answer is given up, the memory stays bounded.

my $rss = rss();

$before = cancels();
my $flood = form([ prompt => '!flood 100000 4000' ]);
my @slow = map { my $c = $t->client(rcvbuf => 4096);
                 $c->send(request('/v', $flood, @$_));
                 $c } map { (\@text, []) } 1 .. 5;

ok($engine->wait_lines(qr/^cancel /, $before + 10),
   'readers too slow: cancelled');
cmp_ok(rss() - $rss, '<', 10 * 1024, 'what the worker holds is bounded');
good('readers too slow');

my $r = $slow[0]->read_answer();
is($r->{complete}, 0, 'a text is cut so that the client sees it');

$got = read_events($slow[1]);
like($got->{last}, qr/^\{"error":\{.*"code":"client_too_slow"\}\}$/,
     'a stream ends with an error');
cmp_ok($got->{largest}, '<=', 65536, 'events have a bound');
$_->close() for @slow;

# one that never reads is dropped after send_timeout, the engine told

$before = cancels();
$c = $t->client(rcvbuf => 4096);
$c->send(request('/slow', form([ prompt => '!flood 100000 4000' ])));
ok($engine->wait_lines(qr/^cancel /, $before + 1),
   'a client that never reads: cancelled');
ok($t->wait_log(qr/timed out.*client/), 'a client that never reads: logged');
$c->close();
good('a client that never reads');

# many at once that leave at random times

my @many = map { my $c = $t->client();
                 $c->send(request('/v', form([ prompt => '!slow 1000 5' ])));
                 $c } 1 .. 100;
$_->read_until(qr/t\d/) for @many[0 .. 49];
$_->reset() for @many;
good('a hundred left');

$before = $engine->lines(qr/^request /);
ok($engine->wait_lines(qr/^cancel /, 1), 'cancels came');

# every request has come to an end at the engine

ok(wait_for(sub {
       my $end = () = $engine->log() =~ /^(?:done|cancel|error) /mg;
       return $end >= $engine->lines(qr/^request /);
   }), 'nothing goes on at the engine');

$t->done();
