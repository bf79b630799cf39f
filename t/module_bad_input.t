#!/usr/bin/perl

# What a client can do wrong: the status, an error in JSON, and a good request
# right afterwards.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;

my $t = VLM::Test->new();
my $engine = $t->engine('a');

$t->nginx(locations => <<'EOF_CONF');
location /v {
    vlm_pass unix:%%DIR%%/a.sock;
    vlm_max_request_size 1500k;
    vlm_max_image_size 100k;
    vlm_max_text_size 1k;
    vlm_max_images 3;
    vlm_max_parts 6;
}

location /core {
    vlm_pass unix:%%DIR%%/a.sock;
    client_max_body_size 1k;
}

location /sub {
    vlm_pass unix:%%DIR%%/a.sock;
}

location /auth {
    auth_request /sub;
    empty_gif;
}
EOF_CONF

my $head = "--vlm-test-boundary\r\nContent-Disposition: form-data";
my $tail = "--vlm-test-boundary--\r\n";
my $prompt = "$head; name=prompt\r\n\r\nhi\r\n";
my $image = file('a.jpg', 'x' x 1000);
my $type = form_type();

# a form and what must come of it: status, code, param

sub bad_form {
    my ($name, $form, @expected) = @_;

    my $body = ref $form ? form($form) : $form;

    bad("$name", request('/v', $body), @expected);
    bad("$name, chunked", request('/v', $body, chunked => 100), @expected);
}

sub bad {
    my ($name, $bytes, $status, $code, $param) = @_;

    my $c = $t->client();
    $c->send($bytes);
    my $r = $c->read_answer();

    is($r->{status}, $status, "$name: status");
    is($r->{h}{'content-type'}, 'application/json', "$name: type");
    ok($r->{complete}, "$name: complete");

    my $error = json($r->{body})->{error};

    is_deeply([ sort keys %{$error // {}} ],
              [ qw/ code message param type / ], "$name: shape")
        or diag($r->{body});
    is($error->{code}, $code, "$name: code");
    is($error->{param}, $param, "$name: param");
    is($error->{type}, $status < 500 ? 'invalid_request_error'
                                     : 'server_error', "$name: type");
    isnt($error->{message} // '', '', "$name: message");
    like($r->{h}{'x-request-id'} // '', qr/^[0-9a-f]{32}$/, "$name: id");

    # on the same connection, if the server keeps it

    if (($r->{h}{connection} // '') eq 'close') {
        $c->close();
        $c = $t->client();
    }

    $c->send(request('/v', form([ prompt => 'good' ])));
    my $good = $c->read_answer();

    ok($good->{status} == 200 && $good->{body} =~ /\[DONE\]/,
       "$name: a good request afterwards")
        or diag("$good->{status} $good->{body}");

    $c->close();

    return $r;
}

# forms

bad_form('an empty body', '', 400, 'invalid_multipart', undef);
bad_form('no parts', $tail, 400, 'missing_input', undef);
bad_form('neither picture nor prompt', [ system => 'x', other => 'y' ],
         400, 'missing_input', undef);
bad_form('empty picture and prompt',
         [ image => file('', ''), prompt => '' ], 400, 'missing_input',
         undef);
bad_form('a part without a name',
         "$head; filename=x\r\n\r\nhi\r\n$tail", 400, 'invalid_multipart',
         undef);
bad_form('no final boundary', $prompt, 400, 'invalid_multipart', undef);
bad_form('half of the final boundary', "$prompt--vlm-test-bound", 400,
         'invalid_multipart', undef);
bad_form('another boundary', form([ prompt => 'x' ], 'other'), 400,
         'invalid_multipart', undef);
bad_form('bare LF', do { (my $s = "$prompt$tail") =~ s/\r\n/\n/g; $s }, 400,
         'invalid_multipart', undef);
bad_form('too many parts', [ map { ("x$_" => 'x') } 1 .. 7 ], 400,
         'too_many_parts', undef);
bad_form('too many pictures', [ map { (image => $image) } 1 .. 4 ], 400,
         'too_many_images', 'image[3]');
bad_form('a part header of 1 MB',
         "$head; name=prompt\r\nX: " . 'x' x 1_048_576 . "\r\n\r\nhi\r\n$tail",
         400, 'invalid_multipart', undef);
bad_form('nested multipart', "$head; name=image\r\n"
         . "Content-Type: multipart/mixed; boundary=x\r\n\r\n\r\n$tail", 400,
         'invalid_multipart', undef);
bad_form('base64', "$head; name=image\r\n"
         . "Content-Transfer-Encoding: base64\r\n\r\nYQ==\r\n$tail", 400,
         'invalid_multipart', undef);
bad_form('invalid UTF-8', [ prompt => "a\xff" ], 400, 'invalid_utf8',
         'prompt');
bad_form('UTF-8 that ends early', [ prompt => "a\xc3" ], 400, 'invalid_utf8',
         'prompt');
bad_form('a prompt over the limit', [ prompt => 'x' x 1025 ], 413,
         'payload_too_large', 'prompt');
bad_form('texts over the limit',
         [ prompt => 'x' x 1000, system => 'x' x 25 ], 413,
         'payload_too_large', 'system');
bad_form('a picture over the limit',
         [ image => $image, image => file('b.jpg', 'x' x 102_401) ], 413,
         'payload_too_large', 'image[1]');
bad_form('an empty picture', [ prompt => 'x', image => file('a.jpg', '') ],
         400, 'invalid_image', 'image[0]');
bad_form('a prompt twice', [ prompt => 'x', prompt => 'x' ], 400,
         'duplicate_field', 'prompt');
bad_form('a scalar twice',
         [ prompt => 'x', top_p => 1, top_p => 1 ], 400, 'duplicate_field',
         'top_p');
bad_form('17 stop strings', "$head; name=stop\r\n\r\nx\r\n" x 17 . $tail, 400,
         'too_many_parts', undef);

for my $case (
    [ max_tokens => 'abc', '0', '-1', '1.5' ],
    [ temperature => 'nan', '-0.1', '2.01', 'inf' ],
    [ top_p => '0', '1.1', '0x1' ],
    [ top_k => '-2', '1.5' ],
    [ min_p => '-1', '2' ],
    [ seed => '1e3', '99999999999999999999' ],
    [ stream => 'maybe' ],
    [ detail => 'best' ])
{
    my ($name, @values) = @$case;

    for my $value (@values) {
        my $r = bad("$name=$value",
            request('/v', form([ prompt => 'x', $name => $value ])), 400,
            'invalid_value', $name);
        like(json($r->{body})->{error}{message}, qr/^$name must be /,
             "$name=$value: says what it must be");
    }
}

# the request's size: told before, or found out

my $big = form([ prompt => 'x', other => 'x' x 1_600_000 ]);

bad('413 by length', request('/v', $big), 413, 'payload_too_large', undef);
bad('413 by chunks', request('/v', $big, chunked => 5000), 413,
    'payload_too_large', undef);

my $c = $t->client();
$c->send(request('/v', '', length => 1_600_000,
                 headers => [ 'Expect: 100-continue' ]));
my $r = $c->read_head();
is($r->{status}, 413, 'told before the body: no 100');

$r = $t->post('/core', [ prompt => 'x' x 2000 ]);
is($r->{status}, 413, 'client_max_body_size is honoured');
$r = $t->post('/core', [ prompt => 'x' ]);
is($r->{status}, 200, 'and lets smaller ones through');

# method, type

for my $method (qw/ GET PUT DELETE /) {
    $r = bad($method, request('/v', '', method => $method, type => ''), 405,
             'method_not_allowed', undef);
    is($r->{h}{allow}, 'POST', "$method: Allow");
}

$c = $t->client();
$c->send("HEAD /v HTTP/1.1\r\nHost: localhost\r\n\r\n");
$r = $c->read_head();
is($r->{status}, 405, 'HEAD');
ok(!defined $c->read_exactly(1, 0.3), 'HEAD: no body');
$c->close();

for my $other ('', 'text/plain', 'application/x-www-form-urlencoded',
               'multipart/mixed; boundary=vlm-test-boundary', 'image/jpeg')
{
    bad("type '$other'", request('/v', "$prompt$tail", type => $other), 415,
        'unsupported_content_type', undef);
}

for my $case (
    [ 'no boundary', 'multipart/form-data' ],
    [ 'boundary of 71', 'multipart/form-data; boundary=' . 'b' x 71 ],
    [ 'two boundaries', "$type; boundary=x" ],
    [ 'an open quote', 'multipart/form-data; boundary="x' ])
{
    my ($name, $value) = @$case;
    bad($name, request('/v', "$prompt$tail", type => $value), 400,
        'invalid_multipart', undef);
}

for my $value ('multipart/form-data;boundary=B',
               'multipart/form-data; boundary="B";',
               'Multipart/Form-Data; charset=utf-8; Boundary=B')
{
    $r = $t->exchange(request('/v', form([ prompt => 'x' ], 'B'),
                              type => $value));
    is($r->{status}, 200, $value);
}

my $long = 'b' x 70;
$r = $t->exchange(request('/v', form([ prompt => 'x' ], $long),
                          type => "multipart/form-data; boundary=$long"));
is($r->{status}, 200, 'boundary of 70');

# not for subrequests

$r = $t->exchange("GET /auth HTTP/1.1\r\nHost: localhost\r\n\r\n");
cmp_ok($r->{status}, '>=', 403, 'subrequest refused');

# the engine's own errors

$r = bad('unknown model', request('/v',
         form([ prompt => '!error 404 model_not_found model no such model' ])),
         404, 'model_not_found', 'model');
is(json($r->{body})->{error}{message}, 'no such model', 'its message');

bad('invalid picture', request('/v',
    form([ image => $image,
           prompt => '!error 400 invalid_image image[0] not a picture' ])),
    400, 'invalid_image', 'image[0]');
bad('context', request('/v',
    form([ prompt => '!error 400 context_length_exceeded - too long' ])),
    400, 'context_length_exceeded', undef);

$r = bad('busy', request('/v', form([ prompt => '!busy 7' ])), 503,
         'overloaded', undef);
is($r->{h}{'retry-after'}, 7, 'Retry-After');

# nothing of all that is still at the engine

is(scalar $engine->lines(qr/WRONG|bad record/), 0, 'the engine is content');

$t->expect_errors(qr/subrequest/);

# every line about a request carries its id

$r = $t->post('/v', [ other => 'x' ]);
my $id = $r->{h}{'x-request-id'};

ok((grep { /answered with 400/ && /, request id: "\Q$id\E"/ }
    split /\n/, $t->log()), 'the error log tells the request\'s id');

$t->done();
