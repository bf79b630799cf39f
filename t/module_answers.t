#!/usr/bin/perl

# The answer: server-sent events, one JSON object, plain text; to the byte.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;
use Digest::SHA qw/ sha256_hex /;

my $t = VLM::Test->new();
my $engine = $t->engine('a');
my $h2 = $t->free_port();

$t->nginx(
    server => "listen 127.0.0.1:$h2 http2;",
    locations => <<'EOF_CONF');
location /v {
    vlm_pass unix:%%DIR%%/a.sock;
}

location /ping {
    vlm_pass unix:%%DIR%%/a.sock;
    vlm_ping_interval 300ms;
    vlm_read_timeout 2s;
}
EOF_CONF

my $picture = join('', map { chr } 0 .. 255) x 100;
my $sha = substr(sha256_hex($picture), 0, 8);
my $text = "roles=user;pictures=1;sha=$sha;prompt=What?";
my @form = (image => file('a.jpg', $picture), prompt => 'What?');

# server-sent events

my $r = $t->post('/v', \@form);

is($r->{status}, 200, 'status');
is($r->{h}{'content-type'}, 'text/event-stream', 'type');
is($r->{h}{'cache-control'}, 'no-cache', 'not cached');
is($r->{h}{'x-accel-buffering'}, 'no', 'not buffered by others');
ok($r->{complete}, 'complete');

my ($id, $created) = $r->{body} =~ /"id":"chatcmpl-([^"]+)".*?"created":(\d+)/;

like($id, qr/^[0-9a-f]{32}$/, 'id');
is($r->{h}{'x-request-id'}, $id, 'the same in X-Request-Id');
cmp_ok(abs($created - time()), '<', 60, 'created');

my $head = "data: {\"id\":\"chatcmpl-$id\","
    . "\"object\":\"chat.completion.chunk\",\"created\":$created,\"model\":\"fake\",";

sub chunk {
    my ($delta, $finish) = @_;
    return "$head\"choices\":[{\"index\":0,\"delta\":{$delta},"
        . "\"logprobs\":null,\"finish_reason\":$finish}],\"usage\":null}\n\n";
}

my $usage = usage($text, 1);
my $rest = $r->{body};

ok($rest =~ s/^\Q${\chunk('"role":"assistant","content":""', 'null')}\E//,
   'first the role');
ok($rest =~ s/\Q${head}"choices":[],"usage":$usage}\E\n\ndata: \[DONE\]\n\n\z//,
   'usage and [DONE] at the end');
ok($rest =~ s/\Q${\chunk('', '"stop"')}\E\z//, 'the reason before them');

my $said = '';
my $chunks = 0;
my ($before, $after) = split /X/, chunk('"content":"X"', 'null');

while ($rest =~ s/^\Q$before\E([^"]*)\Q$after\E//) {
    $said .= $1;
    $chunks++;
}

is($rest, '', 'nothing else');
is($said, $text, 'the text');
cmp_ok($chunks, '>=', 1, 'in chunks');

# usage as the fake engine counts: it has no tokenizer

sub usage {
    my ($text, $pictures) = @_;

    my ($line) = ($engine->lines(qr/^done /))[-1];
    my ($tokens) = $line =~ /tokens=(\d+)/;
    my $prompt = json_usage()->{prompt_tokens};

    cmp_ok($prompt, '>=', 10 + 64 * $pictures, 'prompt tokens');

    # the end token is counted too

    return sprintf('{"prompt_tokens":%d,"completion_tokens":%d,'
        . '"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d,'
        . '"image_tokens":%d}}', $prompt, $tokens + 1, $prompt + $tokens + 1,
        $prompt / 2, 64 * $pictures);
}

sub json_usage {
    my ($event) = grep { ref && $_->{usage} } events($r->{body});
    return $event->{usage};
}

# one object

for my $case (
    [ 'stream=false', [ stream => 'false' ], [] ],
    [ 'Accept', [], [ 'Accept: application/json' ] ],
    [ 'both', [ stream => '0' ],
      [ 'Accept: text/event-stream, application/json;q=0.9' ] ])
{
    my ($name, $fields, $headers) = @$case;

    $r = $t->post('/v', [ @form, @$fields ], headers => $headers);

    is($r->{status}, 200, "$name: status");
    is($r->{h}{'content-type'}, 'application/json', "$name: type");
    is($r->{h}{'cache-control'}, undef, "$name: no header of streams");
    is($r->{h}{'content-length'}, length($r->{body}), "$name: its length");

    $id = $r->{h}{'x-request-id'};
    ($created) = $r->{body} =~ /"created":(\d+)/;

    my ($u) = $r->{body} =~ /"usage":(.*)}\n$/;

    is($r->{body}, "{\"id\":\"chatcmpl-$id\",\"object\":\"chat.completion\","
        . "\"created\":$created,\"model\":\"fake\",\"choices\":[{\"index\":0,"
        . "\"message\":{\"role\":\"assistant\",\"content\":\"$text\"},"
        . "\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":$u}\n",
        "$name: the object");
    is($u, $usage, "$name: the usage");
}

# stream=true wins over Accept

$r = $t->post('/v', [ @form, stream => 'true' ],
              headers => [ 'Accept: application/json' ]);
is($r->{h}{'content-type'}, 'text/event-stream', 'stream=true');

$r = $t->post('/v', \@form,
              headers => [ 'Accept: application/json, text/plain, */*' ]);
is($r->{h}{'content-type'}, 'application/json', 'the first named wins');

# plain text

for my $fields ([], [ stream => 'true' ], [ stream => 'false' ]) {
    $r = $t->post('/v', [ @form, @$fields ],
                  headers => [ 'Accept: text/plain' ]);

    my $name = "text/plain @$fields";

    is($r->{status}, 200, "$name: status");
    like($r->{h}{'content-type'}, qr/^text\/plain(; charset=utf-8)?$/,
         "$name: type");
    is($r->{body}, "$text\n", "$name: text");
    ok($r->{complete}, "$name: complete");
}

is($r->{h}{'content-length'}, length($text) + 1,
   'stream=false: in one piece');

# characters that JSON escapes, and UTF-8

my $odd = "a\"b\\c /\x{c3}\x{a4}\x{f0}\x{9f}\x{90}\x{88}";

$r = $t->post('/v', [ prompt => "!text $odd" ]);
is(join('', map { ref && @{$_->{choices}}
                  ? $_->{choices}[0]{delta}{content} // '' : '' }
            events($r->{body})),
   do { my $s = $odd; utf8::decode($s); $s }, 'characters in events');

$r = $t->post('/v', [ prompt => "!text $odd", stream => 'false' ]);
is(json($r->{body})->{choices}[0]{message}{content},
   do { my $s = $odd; utf8::decode($s); $s }, 'characters in an object');

$r = $t->post('/v', [ prompt => "!text $odd" ],
              headers => [ 'Accept: text/plain' ]);
is($r->{body}, "$odd\n", 'characters as they are');

# the reason, and max_tokens

$r = $t->post('/v', [ prompt => '!slow 5 1', max_tokens => 2 ]);
my @events = events($r->{body});
is($events[-3]{choices}[0]{finish_reason}, 'length', 'cut by max_tokens');
is($events[-2]{usage}{completion_tokens}, 2, 'tokens counted');

$r = $t->post('/v', [ prompt => '!length', stream => 'false' ]);
is(json($r->{body})->{choices}[0]{finish_reason}, 'length',
   'the reason in an object');

# tokens arrive one by one

my $c = $t->client();
$c->send(request('/v', form([ prompt => '!slow 4 200' ])));
$head = $c->read_head();
my @at;

for ( ;; ) {
    my $event = $c->next_event($head);
    last if !defined $event->{data};
    push @at, $event->{at} if $event->{data} =~ /"content":"[^"]/;
}

is(scalar @at, 4, 'an event for each token');
cmp_ok($at[3] - $at[0], '>', 0.4, 'as they come');
$c->close();

# HTTP/1.0 knows no chunks

$r = $t->post('/v', \@form, version => '1.0');
is($r->{h}{'transfer-encoding'}, undef, 'HTTP/1.0: no chunks');
like($r->{body}, qr/data: \[DONE\]\n\n\z/, 'HTTP/1.0: all of it');
ok($r->{complete}, 'HTTP/1.0: ended by close');

# pings: after the queue, while the engine reports and says nothing

$c = $t->client();
$c->send(request('/ping', form([ prompt => '!progress' ])));
$head = $c->read_head();
is($head->{status}, 200, 'the header leaves with a ping');
is($c->next_event($head)->{comment}, 'ping', 'a ping');
is($c->next_event($head)->{comment}, 'ping', 'another one');
$c->close();
ok($engine->wait_lines(qr/^cancel /), 'cancelled when the client leaves');

$r = $t->post('/ping', [ prompt => '!queued 1500' ]);
is($r->{status}, 200, 'queued: answered');
unlike($r->{body}, qr/^: ping/, 'queued: no ping before');

# nor when the timer of silence finds that the engine has reported meanwhile

for my $type ('text/event-stream', 'text/plain') {
    $r = $t->post('/ping', [ prompt => '!queued 2500' ],
                  headers => [ "Accept: $type" ]);
    is($r->{status}, 200, "$type, longer than the timeout: answered");
    unlike($r->{body}, qr/^: ping/, "$type: no ping before");
}

$r = $t->post('/ping', [ prompt => '!silent' ]);
is($r->{status}, 504, 'no ping without a word of the engine: a status');
is(json($r->{body})->{error}{type}, 'server_error', 'and an error');

$r = $t->post('/ping', [ prompt => '!progress', stream => 'false' ],
              timeout => 3);
is($r->{status}, 0, 'no pings into an object');

# HTTP/2

my ($status, $out) = $t->curl('--http2-prior-knowledge', '-D',
    "$t->{dir}/h2.head", '-F', "image=\@$0", '-F', 'prompt=What?',
    "http://127.0.0.1:$h2/v");
is($status, 0, 'h2: curl');
like(VLM::Test::slurp("$t->{dir}/h2.head"), qr!^HTTP/2 200!, 'h2: status');
like($out, qr/data: \[DONE\]\n\n\z/, 'h2: all of it');
$sha = substr(sha256_hex(VLM::Test::slurp($0)), 0, 8);
is(join('', map { ref && @{$_->{choices}}
                  ? $_->{choices}[0]{delta}{content} // '' : '' }
            events($out)),
   "roles=user;pictures=1;sha=$sha;prompt=What?", 'h2: text');

($status, $out) = $t->curl('--http2-prior-knowledge', '-D',
    "$t->{dir}/h2.head", '-F', "image=\@$0", '-F', 'max_tokens=x',
    '-F', 'prompt=x', "http://127.0.0.1:$h2/v");
is($status, 0, 'h2: curl, bad form');
like(VLM::Test::slurp("$t->{dir}/h2.head"), qr!^HTTP/2 400!, 'h2: status');
is(json($out)->{error}{param}, 'max_tokens', 'h2: an error');

$t->done();
