#!/usr/bin/perl

# Engines that are not there, die, hang, or talk nonsense: the client gets an
# answer, nginx goes on, and the next request works as soon as the engine does.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;
use Time::HiRes qw/ sleep time /;

my $t = VLM::Test->new();

$t->nginx(http => 'vlm_connect_timeout 1s;', locations => <<'EOF_CONF');
location /v {
    vlm_pass unix:%%DIR%%/a.sock;
}

location /quick {
    vlm_pass unix:%%DIR%%/a.sock;
    vlm_read_timeout 1s;
    vlm_connect_timeout 300ms;
}

location /b {
    vlm_pass unix:%%DIR%%/b.sock;
}
EOF_CONF

my $engine;
my @text = (headers => [ 'Accept: text/plain' ]);

# once somebody listens the next request works, whatever failed before

sub restart {
    $engine->start(@_);
}

sub good {
    my ($name, $uri) = @_;
    my $r = $t->post($uri // '/v', [ prompt => 'good' ], @text);
    return is($r->{body}, "roles=user;pictures=0;sha=;prompt=good\n",
              "$name: a good request afterwards");
}

sub fails {
    my ($name, $status, $uri, $fields, %opt) = @_;

    my $start = time();
    my $r = $t->post($uri, $fields // [ prompt => 'x' ], %opt);
    my $error = json($r->{body})->{error};

    is($r->{status}, $status, "$name: status")
        or diag("$r->{body}\n" . $t->log());
    ok($error && $error->{message} ne '' && $r->{complete},
       "$name: an error in JSON");
    cmp_ok(time() - $start, '<', 8, "$name: soon");

    return ($r, $error // {});
}

# not there yet

my ($r, $error) = fails('no engine', 502, '/v');
is($error->{type}, 'server_error', 'no engine: type');
isnt($error->{code}, undef, 'no engine: code');
fails('no engine, again', 502, '/v');

$engine = $t->engine('a');
good('started');

# killed, and back; stopped, and back

for my $how (qw/ kill_now stop /) {
    $engine->$how();
    fails("$how", 502, '/v');
    restart();
    good("$how");

    # restarted in between, nobody asked meanwhile
    $engine->$how();
    restart();
    good("$how, unnoticed");
}

# another engine does not care

my $other = $t->engine('b');
good('another engine', '/b');
$engine->kill_now();
good('another engine, one dead', '/b');
restart();
good('both');

# death while a request is there, seen in each form of the answer

for my $prompt ('!die', '!close') {
    fails("$prompt before the first token", 502, '/v',
          [ prompt => $prompt ]);
    $engine->wait_exit() if $prompt eq '!die';
    restart() if $prompt eq '!die';
    good("$prompt before the first token");

    $r = $t->post('/v', [ prompt => "$prompt 3" ]);
    is($r->{status}, 200, "$prompt in mid-stream: the status was sent");
    like($r->{body}, qr/"content":".*\ndata: \{"error":\{[^\n]*\}\n\n\z/s,
         "$prompt in mid-stream: an error event at the end");
    unlike($r->{body}, qr/\[DONE\]|"finish_reason":"/,
           "$prompt in mid-stream: no [DONE]");
    ok($r->{complete}, "$prompt in mid-stream: well-formed");
    $engine->wait_exit() if $prompt eq '!die';
    restart() if $prompt eq '!die';
    good("$prompt in mid-stream");

    $r = $t->post('/v', [ prompt => "$prompt 3" ], @text);
    is($r->{complete}, 0, "$prompt in a text: cut so that one sees it");
    $engine->wait_exit() if $prompt eq '!die';
    restart() if $prompt eq '!die';
    good("$prompt in a text");

    fails("$prompt in an object", 502, '/v',
          [ prompt => "$prompt 3", stream => 'false' ]);
    $engine->wait_exit() if $prompt eq '!die';
    restart() if $prompt eq '!die';
    good("$prompt in an object");
}

# killed from outside with several requests in flight

my @clients = map { my $c = $t->client();
                    $c->send(request('/v', form([ prompt => '!slow 500 20' ])));
                    $c } 1 .. 10;
$_->read_until(qr/t1/) for @clients;
$engine->kill_now();

for my $c (@clients) {
    ok(defined $c->read_until(qr/data: \{"error":.*\n\n\r\n0\r\n\r\n/),
       'every client is told');
    $c->close();
}

restart();
good('killed with ten requests');

# errors that come late

$r = $t->post('/v', [ prompt => '!late-error 2 503 overloaded - too much' ]);
is($r->{status}, 200, 'late error: the status was sent');
like($r->{body}, qr/"code":"overloaded"\}\}\n\n\z/, 'late error: an event');
unlike($r->{body}, qr/\[DONE\]/, 'late error: no [DONE]');

fails('late error in an object', 503, '/v', [ stream => 'false',
      prompt => '!late-error 2 503 overloaded - too much' ]);

# nonsense in the ring: the channel is dropped, and opened again

for my $kind (qw/ type size0 small odd large tail length choice slot
                  generation reason stage status code outcome /)
{
    for my $at (0, 2) {
        $r = $t->post('/quick', [ prompt => "!garbage $kind $at" ]);

        # some of it is harmless; nothing is a hang, or not HTTP
        ok($r->{status} == 502 || $r->{status} == 504 || $r->{status} == 200
           || $r->{status} == 500,
           "garbage $kind $at: $r->{status}") or diag($r->{body});
        ok($r->{complete}, "garbage $kind $at: complete");
        good("garbage $kind $at");
    }
}

for my $kind (qw/ type size0 small odd large tail /) {
    my ($r) = fails("garbage $kind, no token yet", 502, '/quick',
                    [ prompt => "!garbage $kind 0" ]);
}

cmp_ok(scalar(() = $t->log() =~ /\[(?:error|crit)\]/g), '>=', 6,
       'they are logged');

# late and foreign events hurt nobody

my $slow = $t->client();
$slow->send(request('/v', form([ prompt => '!slow 60 20' ]), @text));

for my $mode ('!stale', '!wrong-slot', '!after-done', '!hold',
              '!unfinished', '!stale', '!after-done')
{
    $r = $t->post('/v', [ prompt => $mode ]);
    is($r->{status}, 200, "$mode: status");
    like($r->{body}, qr/\[DONE\]\n\n\z/, "$mode: whole");
    is(join('', $r->{body} =~ /"content":"([^"]*)"/g),
       "roles=user;pictures=0;sha=;prompt=$mode", "$mode: nothing foreign");
    good($mode);
}

$r = $slow->read_answer();
is($r->{body}, join(' ', map { "t$_" } 0 .. 59) . "\n",
   'another answer is not disturbed');
$slow->close();

# an engine that does not acknowledge cancels: its slots are not used again

for my $mode ('!deaf 300 1000 5', '!deaf never 20 5') {
    for (1 .. 5) {
        my $c = $t->client();
        $c->send(request('/v', form([ prompt => $mode ])));
        $c->read_until(qr/"content":"./);
        $c->reset();
    }

    good($mode) for 1 .. 5;
}

# silence

($r, $error) = fails('silence', 504, '/quick', [ prompt => '!silent' ]);
good('silence');

$r = $t->post('/quick', [ prompt => '!silent 2' ]);
is($r->{status}, 200, 'silence in mid-stream: the status was sent');
like($r->{body}, qr/data: \{"error":[^\n]*\n\n\z/,
     'silence in mid-stream: an error event');
unlike($r->{body}, qr/\[DONE\]/, 'silence in mid-stream: no [DONE]');
good('silence in mid-stream');

$engine->signal('STOP');
fails('a stopped engine', 504, '/quick');
$engine->signal('CONT');
good('a stopped engine');

# loading, draining, failed

$engine->stop();
restart('--state', 'loading', '--retry-after', 5);
($r) = fails('loading', 503, '/v');
is($r->{h}{'retry-after'}, 5, 'loading: Retry-After');
$engine->signal('USR2');
ok(wait_for(sub { $t->post('/v', [ prompt => 'x' ])->{status} == 200 }),
   'loaded');

$engine->signal('USR1');
ok(wait_for(sub { $t->post('/v', [ prompt => 'x' ])->{status} == 503 }),
   'draining');
($r) = fails('draining', 503, '/v');
like($r->{h}{'retry-after'}, qr/^\d+$/, 'draining: Retry-After');

$engine->stop();
restart('--state', 'failed');
fails('failed', 502, '/v');

# refused before the body

my $c = $t->client();
$c->send(request('/v', '', length => 1000,
                 headers => [ 'Expect: 100-continue' ]));
is($c->read_head()->{status}, 502, 'refused without 100');
$c->close();

# the handshake

for my $mode (qw/ hang close-on-accept close-after-hello bad-magic
                  bad-abi short-welcome refuse-version refuse-fd refuse-busy
                  talk no-accept /)
{
    $engine->stop();
    restart('--mode', $mode);

    my ($r) = $mode eq 'refuse-busy'
              ? $t->post('/quick', [ prompt => 'x' ])
              : fails($mode, 502, '/quick');

    cmp_ok($r->{status}, '>=', 502, "$mode: refused");

    $engine->stop();
    restart();

    # an attempt that somebody answered is not repeated within 100 ms
    sleep(0.15);
    good("$mode");
}

like($t->log(), qr/version|ABI/i, 'the log says that versions differ');

is(scalar $engine->lines(qr/WRONG|bad record/), 0, 'every sum was right');

$t->done();
