#!/usr/bin/perl

# The whole path: curl or a raw client, NGINX with the module, the engine with
# the demonstration model.  True answers, every answer form, bad pictures each
# followed by a good request, clients that leave at every stage, an engine
# that is killed and started again.

use warnings;
use strict;

use lib 't/lib';
use Compress::Zlib qw/ compress crc32 /;
use VLM::Test;
use Test::More;

my $build = $ENV{VLM_BUILD} // 'build';
my $t = VLM::Test->new();
my $socket = "$t->{dir}/vlm.sock";
my $log = "$t->{dir}/engine.log";
my $engine_pid;

plan(skip_all => "no $build/vlm-engine") if !-x "$build/vlm-engine";

sub start_engine {
    my (@options) = @_;

    $engine_pid = VLM::Test::spawn($log, "$build/vlm-engine", '--model',
        'models/demo', '--socket', $socket, '--max-model-len', 1024,
        '--max-image-pixels', 4_000_000, @options);
}

sub stop_engine {
    my ($signal) = @_;

    kill($signal, $engine_pid);
    return reap($engine_pid, 20);
}

sub ready {
    return wait_for(sub {
        $t->post('/describe', [ prompt => 'hi', max_tokens => 1 ])->{status}
            == 200
    }, 20);
}

start_engine();

$t->nginx(locations => <<'EOF_CONF');
location /describe {
    vlm_pass unix:%%DIR%%/vlm.sock;
    vlm_max_text_size 16k;
}
EOF_CONF

ok(ready(), 'the engine is ready');

# true answers: questions held out from training, and what the reference says

my @questions = map { json($_) }
                split /\n/, VLM::Test::slurp('t/data/heldout/questions.jsonl');

sub picture {
    my ($path) = @_;
    return file('p', VLM::Test::slurp($path));
}

my ($asked, $right) = (0, 0);

for my $i (grep { $_ % 13 == 0 } 0 .. $#questions) {
    my $q = $questions[$i];

    next if $q->{margin} < 0.05;

    my $r = $t->post('/describe', [ image => picture(
        "t/data/heldout/$q->{image}"), prompt => $q->{question} ],
        headers => [ 'Accept: text/plain' ]);

    $asked++;
    $right++ if $r->{status} == 200 && $r->{body} eq "$q->{reference}\n";
}

ok($asked > 20, "$asked questions");
is($right, $asked, 'each answered as the reference answers');

# the three forms of an answer

my $scene = picture('models/samples/scene1.jpg');
my $question = 'What color is the square?';
my $expected = 'The square is yellow.';
my @good = (image => $scene, prompt => $question);

my $r = $t->post('/describe', [ @good ]);
my @events = events($r->{body});

is($r->{status}, 200, 'stream: status');
is($r->{h}{'content-type'}, 'text/event-stream', 'stream: type');
is(join('', map { ref $_ && @{$_->{choices}}
                  ? $_->{choices}[0]{delta}{content} // '' : '' } @events),
   $expected, 'stream: text');
is($events[-1], '[DONE]', 'stream: end');
is($events[-2]{usage}{completion_tokens}, 6, 'stream: tokens');
is($events[-2]{usage}{prompt_tokens_details}{image_tokens}, 30,
   'stream: tokens of the picture');

$r = $t->post('/describe', [ @good, stream => 'false' ]);
my $object = json($r->{body});
is($object->{choices}[0]{message}{content}, $expected, 'object: text');
is($object->{choices}[0]{finish_reason}, 'stop', 'object: reason');

$r = $t->post('/describe', [ @good, max_tokens => 2, stream => 'false' ]);
is(json($r->{body})->{choices}[0]{finish_reason}, 'length',
   'max_tokens: reason');

$r = $t->post('/describe', [ @good, stop => ' yell' ],
              headers => [ 'Accept: text/plain' ]);
is($r->{body}, "The square is\n", 'a stop string is not shown');

my ($rc, $body) = $t->curl('-F', 'image=@models/samples/scene1.jpg', '-F',
    "prompt=$question", '-H', 'Accept: text/plain', $t->url('/describe'));
is("$rc $body", "0 $expected\n", 'curl -F');

$r = $t->post('/describe', [ image => $scene, image => picture(
    'models/samples/scene2.png'), prompt => $question, stream => 'false' ]);
is(json($r->{body})->{usage}{prompt_tokens_details}{image_tokens},
   json($t->post('/describe', [ image => picture('models/samples/scene2.png'),
        prompt => $question, stream => 'false' ])->{body})
       ->{usage}{prompt_tokens_details}{image_tokens} + 30,
   'two pictures: tokens of both');

# bad input that the engine decides, each with a good request right afterwards

sub chunk {
    my ($type, $data) = @_;
    return pack('N', length($data)) . $type . $data
           . pack('N', crc32($type . $data));
}

sub png {
    my ($width, $height, $data) = @_;

    return "\x89PNG\r\n\x1a\n"
        . chunk('IHDR', pack('NNCCCCC', $width, $height, 8, 0, 0, 0, 0))
        . chunk('IDAT', compress($data)) . chunk('IEND', '');
}

my $jpeg = VLM::Test::slurp('models/samples/scene1.jpg');
my $png = VLM::Test::slurp('models/samples/scene2.png');
my $noise = join('', map { chr(($_ * 7919 + ($_ >> 3) * 104729) & 255) }
                     1 .. 5000);

# a name, fields, status, code, param, what the message must tell

my @bad = (
    [ 'noise', [ image => file('a.jpg', $noise), prompt => 'x' ],
      400, 'invalid_image', 'image[0]', qr/JPEG/ ],
    [ 'a GIF that is none', [ image => file('a.gif', "GIF89a$noise"),
      prompt => 'x' ], 400, 'invalid_image', 'image[0]', qr/GIF/ ],
    [ 'a PDF', [ image => file('a.jpg', "%PDF-1.7\n$noise"), prompt => 'x' ],
      400, 'unsupported_image', 'image[0]', qr/PDF.*JPEG/ ],
    [ 'a truncated JPEG', [ image => file('a.jpg', substr($jpeg, 0, 3000)),
      prompt => 'x' ], 400, 'invalid_image', 'image[0]', qr/JPEG/ ],
    [ 'a truncated PNG, the second picture', [ image => $scene,
      image => file('a.png', substr($png, 0, 1000)), prompt => 'x' ],
      400, 'invalid_image', 'image[1]', qr/PNG/ ],
    [ '65,500 x 65,500', [ image => file('a.png', png(65500, 65500, 'x')),
      prompt => 'x' ], 400, 'image_too_large', 'image[0]',
      qr/65500 x 65500.*4000000.*--max-image-pixels/ ],
    [ 'too thin', [ image => file('a.png', png(3000, 1, "\0" x 3001)),
      prompt => 'x' ], 400, undef, 'image[0]', qr/200/ ],
    [ 'too many tokens', [ prompt => 'word and ' x 1500 ],
      400, 'context_length_exceeded', undef, qr/1024/ ],
    [ 'another model', [ prompt => 'x', model => 'gpt-4' ],
      404, 'model_not_found', 'model', qr/gpt-4/ ],
);

for my $case (@bad) {
    my ($name, $fields, $status, $code, $param, $re) = @$case;

    my $c = $t->client();
    $c->send(request('/describe', form($fields)));
    my $r = $c->read_answer();
    my $error = json($r->{body})->{error} // {};

    is($r->{status}, $status, "$name: status");
    is($error->{code}, $code, "$name: code") if defined $code;
    is($error->{param}, $param, "$name: param") if defined $param;
    like($error->{message}, $re, "$name: $error->{message}");

    $c->send(request('/describe', form([ @good ])));
    $r = $c->read_answer();
    is($r->{status}, 200, "$name: a good request on the same connection");
    $c->close();
}

# clients that leave; what the engine does then, stage by stage, is tested in
# t/unit/runtime_server.c

my @long = (prompt => $question, image => $scene, max_tokens => 900,
            temperature => 1.5, seed => 1);

for my $stage ('at once', 'after the first token') {
    my $c = $t->client();
    $c->send(request('/describe', form([ @long ])));
    $c->read_head() if $stage eq 'after the first token';
    $c->reset();

    is($t->post('/describe', [ @good ])->{status}, 200,
       "a client left $stage: a good request");
}

# an engine that dies and comes back, without touching nginx

is(stop_engine('KILL') & 127, 9, 'the engine is killed');
$r = $t->post('/describe', [ @good ]);
is($r->{status}, 502, 'engine down: status');
is(json($r->{body})->{error}{type}, 'server_error', 'engine down: an error');

start_engine();
ok(ready(), 'the engine is back');
$r = $t->post('/describe', [ @good ], headers => [ 'Accept: text/plain' ]);
is($r->{body}, "$expected\n", 'and answers as before');

is(stop_engine('TERM'), 0, 'SIGTERM ends the engine');
unlike(VLM::Test::slurp($log), qr/$question/, 'no prompt in the log');
like(VLM::Test::slurp($log), qr/worker \d+ \(uid \d+\) connected/,
     'whose process a worker is, is logged');

$t->done();
