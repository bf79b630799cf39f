#!/usr/bin/perl

# Several choices, log probabilities, and the fields that go with them.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;

my $t = VLM::Test->new();
my $engine = $t->engine('a', '--tokens', 6);

$t->nginx(locations => <<'EOF_CONF');
location /v {
    vlm_pass unix:%%DIR%%/a.sock;
}

location /large {
    vlm_pass unix:%%DIR%%/a.sock;
    vlm_output_buffer_size 4m;
}

location /small {
    vlm_pass unix:%%DIR%%/a.sock;
    vlm_output_buffer_size 16k;
}
EOF_CONF

# what a stream says: text, tokens, alternatives, finish of each choice

sub stream {
    my ($body) = @_;

    my @events = events($body);
    my %got = (last => $events[-1], usages => 0, chunks => scalar(@events),
               order => [], text => [], finish => [], roles => [],
               tokens => [], malformed => 0);

    for my $e (grep { ref } @events) {
        $got{error} = $e->{error} if $e->{error};
        $got{usages}++ if $e->{usage};
        $got{usage} = $e->{usage} // $got{usage};

        for my $c (@{$e->{choices} // []}) {
            my $i = $c->{index};

            if ($c->{delta}{role}) {
                push @{$got{order}}, "role$i";
                $got{roles}[$i]++;

            } elsif (defined $c->{finish_reason}) {
                push @{$got{order}}, "end$i";
                $got{malformed}++ if %{$c->{delta}} || $got{finish}[$i];
                $got{finish}[$i] = $c->{finish_reason};

            } else {
                push @{$got{order}}, "text$i";
                $got{malformed}++
                    if $got{finish}[$i] || !$got{roles}[$i];
                $got{text}[$i] .= $c->{delta}{content};
                push @{$got{tokens}[$i]}, @{$c->{logprobs}{content}}
                    if $c->{logprobs};
            }
        }
    }

    return \%got;
}

sub bytes_of { join('', map { pack('C*', @{$_->{bytes}}) } @_) }

# what the engine was asked

sub asked {
    my ($line) = reverse $engine->lines(qr/^request /);
    return $line;
}

my $text = 'roles=user;pictures=0;sha=;prompt=What?';

# three choices in a stream

my $r = $t->post('/v', [ prompt => 'What?', n => 3 ]);
my $got = stream($r->{body});

is($r->{status}, 200, 'three choices');
is_deeply([ @{$got->{order}}[0 .. 2] ], [ qw/ role0 role1 role2 / ],
          'their roles first');
is_deeply($got->{roles}, [ 1, 1, 1 ], 'a role each');
is_deeply($got->{text}, [ $text, $text, $text ], 'a text each');
is_deeply($got->{finish}, [ qw/ stop stop stop / ], 'an end each');
is($got->{usages}, 1, 'one usage');
is($got->{usage}{completion_tokens}, 3 * 7, 'of all three');
is($got->{last}, '[DONE]', 'one end');
is($got->{malformed}, 0, 'in order');
like(asked(), qr/ n=3 /, 'the engine was asked for three');

# in one piece

my $j = json($t->post('/v', [ prompt => 'What?', n => 2,
                              stream => 'false' ])->{body});

is_deeply([ map { $_->{index} } @{$j->{choices}} ], [ 0, 1 ],
          'one piece: two choices');
is_deeply([ map { $_->{message}{content} } @{$j->{choices}} ],
          [ $text, $text ], 'one piece: their texts');
is_deeply([ map { $_->{finish_reason} } @{$j->{choices}} ],
          [ 'stop', 'stop' ], 'one piece: their ends');
is_deeply([ map { $_->{logprobs} } @{$j->{choices}} ], [ undef, undef ],
          'one piece: no log probabilities');
is($j->{usage}{completion_tokens}, 14, 'one piece: usage of both');

# the end of a choice is told when it is known

my $c = $t->client();
$c->send(request('/v', form([ prompt => '!turns 60000', n => 2 ])));
my $head = $c->read_head();
my $part = '';

while ($part !~ /"index":0,"delta":\{\}/) {
    my $e = $c->next_event($head, 10);
    last if !defined $e->{raw};
    $part .= $e->{raw};
}

$got = stream($part);
is_deeply($got->{finish}, [ 'stop' ], 'the first choice has ended');
ok(!defined $got->{text}[1], 'before the second one has begun');
$c->close();

$r = $t->post('/v', [ prompt => '!turns 10', n => 4 ]);
$got = stream($r->{body});
is($got->{text}[0], 'roles=user;pictures=0;sha=;prompt=!turns 10', 'in turn');
is_deeply([ grep { defined } map { /^end(\d)/ ? $1 : undef }
            @{$got->{order}} ], [ 0 .. 3 ], 'in turn: they end so');
is_deeply($got->{text}, [ ($got->{text}[0]) x 4 ], 'in turn: all texts');
is($got->{malformed}, 0, 'in turn: nothing after the end');

# the most there can be; more than asked for

$got = stream($t->post('/v', [ prompt => 'What?', n => 64 ])->{body});
is_deeply($got->{text}, [ ($text) x 64 ], '64 choices');
is_deeply($got->{finish}, [ ('stop') x 64 ], '64 ends');

$got = stream($t->post('/v', [ prompt => '!choices 5', n => 2 ])->{body});
is(scalar @{$got->{text}}, 2, 'choices that nobody asked for are left out');

$got = stream($t->post('/v', [ prompt => '!unfinished', n => 2 ])->{body});
is_deeply($got->{finish}, [ 'stop', 'stop' ], 'ends that were not told');

$got = stream($t->post('/v', [ prompt => 'What?', n => 2,
                               max_tokens => 2 ])->{body});
is_deeply($got->{finish}, [ 'length', 'length' ], 'both cut by max_tokens');

# plain text shows one

my @text = (headers => [ 'Accept: text/plain' ]);

$r = $t->post('/v', [ prompt => 'What?', n => 2 ], @text);
is($r->{status}, 400, 'plain text of two choices');
is(json($r->{body})->{error}{param}, 'n', 'its param');
is(json($r->{body})->{error}{message},
   'n must be 1 where the answer is plain text', 'its message');

$r = $t->post('/v', [ prompt => 'What?', n => 1 ], @text);
is($r->{body}, "$text\n", 'plain text of one');

$r = $t->post('/v', [ prompt => 'What?', logprobs => 'true',
                      top_logprobs => 3 ], @text);
is($r->{body}, "$text\n", 'plain text without log probabilities');
like(asked(), qr/ logprobs=0 top_logprobs=0/, 'the engine need not tell them');

$r = $t->post('/v', [ prompt => '!late-error 4 500 broken - so', n => 2 ]);
$got = stream($r->{body});
is($got->{error}{code}, 'broken', 'an error in mid-stream');
is($got->{finish}[0], undef, 'no choice ends with it');
is($got->{last}{error}{message}, 'so', 'nothing behind it');

# log probabilities

$r = $t->post('/v', [ prompt => 'What?', logprobs => 'true',
                      top_logprobs => 2 ]);
$got = stream($r->{body});
like(asked(), qr/ logprobs=1 top_logprobs=2/, 'the engine was asked');

my @tokens = @{$got->{tokens}[0]};

is(scalar @tokens, 6, 'a token each');
is(bytes_of(@tokens), $text, 'their bytes are the text');
is(join('', map { $_->{token} } @tokens), $text, 'their strings too');
is_deeply([ map { $_->{logprob} + 0 } @tokens ],
          [ 0, -0.25, -0.5, -0.75, -1, -1.25 ], 'their values');
is_deeply($tokens[2]{top_logprobs},
          [ map { { token => "$_$tokens[2]{token}", logprob => -0.5 - $_,
                    bytes => [ unpack('C*', "$_$tokens[2]{token}") ] } }
            0, 1 ], 'alternatives');
is_deeply([ sort keys %{$tokens[0]} ],
          [ qw/ bytes logprob token top_logprobs / ], 'no other members');

$j = json($t->post('/v', [ prompt => 'What?', logprobs => 1, n => 2,
                           top_logprobs => 2, stream => 0 ])->{body});
is_deeply([ map { $_->{logprobs}{content} } @{$j->{choices}} ],
          [ \@tokens, \@tokens ], 'the same in one piece');

$j = json($t->post('/v', [ prompt => 'What?', logprobs => 1,
                           stream => 0 ])->{body});
is_deeply([ map { $_->{top_logprobs} }
            @{$j->{choices}[0]{logprobs}{content}} ], [ ([]) x 6 ],
          'without alternatives');

$r = $t->post('/v', [ prompt => '!logprobs 5' ]);
unlike($r->{body}, qr/"logprobs":\{/, 'told but not asked for');
is(stream($r->{body})->{last}, '[DONE]', 'does no harm');

for my $stream (0, 1) {
    $r = $t->post('/v', [ prompt => '!logprobs 20', logprobs => 1, n => 5,
                          stream => $stream ]);
    my @got = $stream ? @{stream($r->{body})->{tokens}}
                      : map { $_->{logprobs}{content} }
                        @{json($r->{body})->{choices}};

    is(scalar(grep { @$_ == 6 } @got), 5, "many alternatives, $stream");
    is_deeply([ map { scalar @{$_->{bytes}} }
                map { @{$_->{top_logprobs}} } map { @$_ } @got ],
              [ (201) x (5 * 6 * 20) ], "many alternatives: all bytes");
}

# a client that reads late: nothing is lost or out of order

for my $probs (0, 1) {
    my $slow = $t->client(rcvbuf => 4096);
    my $dones = $engine->lines(qr/^done /);

    $slow->send(request('/large', form([ prompt => '!flood 200 250', n => 3,
                                         logprobs => $probs ])));
    $engine->wait_lines(qr/^done /, $dones + 1);

    $got = stream($slow->read_answer()->{body});
    my $said = join('', map { chr(ord('a') + $_ % 26) x 250 } 0 .. 199);

    is_deeply($got->{text}, [ ($said) x 3 ], "read late, $probs");
    cmp_ok($got->{chunks}, '<', 600, "read late, $probs: merged");
    is_deeply($got->{finish}, [ ('stop') x 3 ], "read late, $probs: ends");
    is($got->{malformed}, 0, "read late, $probs: in order");

    if ($probs) {
        is_deeply([ map { bytes_of(@$_) } @{$got->{tokens}} ], [ ($said) x 3 ],
                  'read late: all log probabilities');
    }

    $slow->close();
}

# too late: the bound is that of all choices together

my $slow = $t->client(rcvbuf => 4096);
my $cancels = $engine->lines(qr/^cancel /);
$slow->send(request('/small', form([ prompt => '!flood 20000 200', n => 8,
                                     logprobs => 1 ])));
ok($engine->wait_lines(qr/^cancel /, $cancels + 1), 'read too late');
$got = stream($slow->read_answer()->{body});
is($got->{error}{code}, 'client_too_slow', 'its error');
$slow->close();

# what the engine says is checked

$r = $t->post('/v', [ prompt => '!garbage logprobs 2', logprobs => 1 ]);
is(stream($r->{body})->{error}{code}, 'engine_died',
   'malformed log probabilities');
ok($t->wait_log(qr/is lost with 1 requests: event of 1 tokens with malformed/),
   'they are named in the log');

ok(wait_for(sub { $t->post('/v', [ prompt => 'x' ])->{status} == 200 }),
   'the engine is connected again');

# the other fields

$r = $t->post('/v', [ prompt => 'x', presence_penalty => '-1.5',
                      frequency_penalty => 0.25, repetition_penalty => 1.125,
                      logit_bias => '{ "5": -100, "1234567": 1.5 }' ]);
is($r->{status}, 200, 'penalties and a bias');
like(asked(), qr/ presence=-1.5 frequency=0.25 repetition=1.125 /,
     'the penalties arrive');
like(asked(), qr/ bias\[5\]=-100 bias\[1234567\]=1.5$/, 'the bias arrives');

my $many = '{' . join(',', map { "\"$_\":1" } 1 .. 1024) . '}';

$r = $t->post('/v', [ prompt => 'x', logit_bias => $many ]);
is($r->{status}, 200, '1024 biases');
is(scalar(() = asked() =~ /bias\[/g), 1024, 'all of them arrive');

for ([ n => 0 ], [ n => 65 ], [ n => 'two' ], [ logprobs => 'yes' ],
     [ top_logprobs => 21 ], [ top_logprobs => 1 ],
     [ presence_penalty => 2.5 ], [ frequency_penalty => -2.5 ],
     [ repetition_penalty => 0 ], [ logit_bias => '[1]' ],
     [ logit_bias => '{"1":101}' ])
{
    my ($name, $value) = @$_;

    $r = $t->post('/v', [ prompt => 'x', $name => $value ]);
    is($r->{status}, 400, "$name=$value");
    is(json($r->{body})->{error}{param}, $name, "$name=$value: param");
}

$t->done();
