#!/usr/bin/perl

# How a body arrives: cut anywhere, in chunks, already read by others, behind
# each other on one connection; and how early answers leave.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;
use Digest::SHA qw/ sha256_hex /;
use Time::HiRes qw/ sleep /;

my $t = VLM::Test->new();
my $engine = $t->engine('a');

$t->nginx(http => 'client_body_timeout 2s; lingering_timeout 2s;',
          locations => <<'EOF_CONF');
vlm_max_text_size 64k;
vlm_max_images 2;

location /v {
    vlm_pass unix:%%DIR%%/a.sock;
}

location /small {
    vlm_pass unix:%%DIR%%/a.sock;
    client_body_buffer_size 1k;
}

location /file {
    vlm_pass unix:%%DIR%%/a.sock;
    client_body_in_file_only on;
}

location /mirrored {
    mirror /sink;
    mirror_request_body on;
    vlm_pass unix:%%DIR%%/a.sock;
}

location /mirrored-file {
    mirror /sink;
    client_body_in_file_only on;
    client_body_buffer_size 1k;
    vlm_pass unix:%%DIR%%/a.sock;
}

location = /sink {
    return 204;
}

location /limited {
    vlm_pass unix:%%DIR%%/a.sock;
    vlm_max_request_size 20k;
    vlm_max_image_size 10k;
}
EOF_CONF

# bytes that look like boundaries nearly everywhere

my @pieces = ("\r\n--vlm-test-boundary", "\r\n--vlm-test-b", "\r\n--", "\r",
              "--vlm-test-boundary--",
              pack('C*', map { ($_ * 7) & 255 } 0 .. 40));
my $picture = join('', map { $pieces[$_ % 6] . chr(65 + $_ % 26) } 0 .. 60);
my $sha = substr(sha256_hex($picture), 0, 8);
my $body = form([ image => file('a.jpg', $picture), prompt => "W\xc3\xa4s?",
                  temperature => '0.5', other => 'x' ]);
my $expected = "roles=user;pictures=1;sha=$sha;prompt=W\xc3\xa4s?\n";
my @text = (headers => [ 'Accept: text/plain' ]);

sub answered {
    my ($r, $name) = @_;

    $r //= { status => 0, body => 'nothing' };

    return ok($r->{status} == 200 && $r->{body} eq $expected
              && $r->{complete}, $name)
        || diag("$r->{status} $r->{body}");
}

# every cut of a small body, one connection for all of them

my $small = form([ image => file('', "\r\n--x\r"), prompt => "\xc3\xa4" ]);
my $short = substr(sha256_hex("\r\n--x\r"), 0, 8);
my $c = $t->client();
my $good = 0;

for my $cut (1 .. length($small) - 1) {
    my $bytes = request('/v', $small, @text);
    my $at = length($bytes) - length($small) + $cut;

    $c->send(substr($bytes, 0, $at));
    sleep(0.001);
    $c->send(substr($bytes, $at));

    my $r = $c->read_answer();
    $good++ if $r && $r->{status} == 200
        && $r->{body} eq "roles=user;pictures=1;sha=$short;prompt=\xc3\xa4\n";
}

is($good, length($small) - 1, 'a small body cut at every byte');
$c->close();

# byte by byte, and in other sizes

for my $size (1, 7, 97, 1000) {
    for my $uri (qw! /v /small !) {
        $c = $t->client();
        $c->send_pieces(request($uri, $body, @text), $size);
        answered($c->read_answer(), "$uri in pieces of $size");
        $c->close();
    }
}

for my $size (1, 10, 333, 100_000) {
    answered($t->post('/v', $body, @text, chunked => $size),
             "chunks of $size");
}

$c = $t->client();
$c->send_pieces(request('/v', $body, @text, chunked => 3), 5);
answered($c->read_answer(), 'chunks of 3 in pieces of 5');
$c->close();

# read by others before

for my $uri (qw! /file /mirrored /mirrored-file !) {
    answered($t->post($uri, $body, @text), $uri);
    answered($t->post($uri, $body, @text, chunked => 100), "$uri, chunked");

    my $r = $t->post($uri, [ max_tokens => 'x' ]);
    is($r->{status}, 400, "$uri, bad form");
}

my $large = file('l.jpg', pack('N*', map { $_ * 2654435761 % 2**32 }
                                     0 .. 400_000));
my $large_sha = substr(sha256_hex($large->{bytes}), 0, 8);

for my $uri (qw! /v /small /file /mirrored-file !) {
    my $r = $t->post($uri, [ image => $large, prompt => 'L' ], @text);
    is($r->{body}, "roles=user;pictures=1;sha=$large_sha;prompt=L\n",
       "$uri, a picture of 1.6 MB");
}

# order of fields, two pictures

my $r = $t->post('/v', [ prompt => 'P', 'image[]' => file('b', 'bb'),
                         system => 'S', image => file('a', 'aa') ], @text);
is($r->{body}, 'roles=system,user;pictures=2;sha='
   . join(',', map { substr(sha256_hex($_), 0, 8) } 'bb', 'aa')
   . ";prompt=P\n", 'fields in any order, pictures in theirs');

my ($line) = ($engine->lines(qr/^request /))[-1];
ok(index($line, ' role[0]=system part[0][0]="S" role[1]=user'
         . ' part[1][0]=picture0 part[1][1]=picture1 part[1][2]="P" ') > 0,
   'one user turn: pictures, prompt') or diag($line);

# keepalive and pipelining

$c = $t->client();

for my $i (1 .. 3) {
    $c->send(request('/v', $body, @text));
    answered($c->read_answer(), "keepalive $i");
    $c->send(request('/v', form([ top_p => 'x' ])));
    is($c->read_answer()->{status}, 400, "keepalive $i, bad form");
}

$c->send(request('/v', $body, @text) . request('/v', $body, @text, chunked => 9)
         . request('/v', form([ prompt => '!error 400 x y z' ]))
         . request('/v', $body, @text)
         . request('/v', '', method => 'GET')
         . request('/v', $body, @text));

answered($c->read_answer(), 'pipelined 1');
answered($c->read_answer(), 'pipelined 2, chunked');
is($c->read_answer()->{status}, 400, "pipelined 3, the engine's error");
answered($c->read_answer(), 'pipelined 4');
is($c->read_answer()->{status}, 405, 'pipelined 5, GET');
answered($c->read_answer(), 'pipelined 6');
$c->close();

# pipelined behind an answer that is still being generated

$c = $t->client();
$c->send(request('/v', form([ prompt => '!slow 5 40' ]))
         . request('/v', $body, @text));
$r = $c->read_answer();
like($r->{body}, qr/t0.*t4.*\[DONE\]/s, 'a slow answer');
answered($c->read_answer(), 'the request behind it');
$c->close();

# 100-continue

$c = $t->client();
my $bytes = request('/v', $body, headers => [ 'Accept: text/plain',
                                              'Expect: 100-continue' ]);
my $split = index($bytes, "\r\n\r\n") + 4;
$c->send(substr($bytes, 0, $split));
is($c->read_head()->{status}, 100, '100-continue');
$c->send(substr($bytes, $split));
answered($c->read_answer(), 'the answer after it');
$c->close();

for my $case ([ '415', type => 'text/plain' ],
              [ '413', length => 100_000_000 ])
{
    my ($status, @opt) = @$case;

    $c = $t->client();
    $c->send(request('/v', '', length => 1000, @opt,
                     headers => [ 'Expect: 100-continue' ]));
    is($c->read_head()->{status}, $status, "$status without 100");
    $c->close();
}

# early answers arrive whole, though the client goes on sending

for my $case ([ 413, '/limited', form([ image => file('a', 'x' x 15_000) ]) ],
              [ 400, '/v', form([ top_p => 'x', image => $large ]) ],
              [ 415, '/v', form([ image => $large ]), type => 'text/plain' ],
              [ 405, '/v', form([ image => $large ]), method => 'PUT' ])
{
    my ($status, $uri, $bytes, @opt) = @$case;

    for my $chunked (0, 1000) {
        $c = $t->client();
        $c->{mute} = 1;

        $bytes = request($uri, $bytes, @opt, chunked => $chunked)
            if $bytes !~ /^(POST|PUT)/;

        my $half = int(length($bytes) / 2);

        $c->send(substr($bytes, 0, $half));
        sleep(0.05);
        my $sent = $c->send(substr($bytes, $half));

        $r = $c->read_answer();
        ok($r && $r->{status} == $status && $r->{complete}
           && json($r->{body})->{error}, "$status, early, chunks $chunked")
            or diag(explain($r));
        is($sent, length($bytes) - $half, 'all of the body was taken');
        $c->close();
    }
}

# a client that stops in the middle

$c = $t->client();
$bytes = request('/v', $body, @text);
$c->send(substr($bytes, 0, length($bytes) - 100));
$r = $c->read_answer();
is($r->{status}, 408, 'a client that stops in the middle');
ok($c->closed(), 'its connection is closed');
$c->close();

for my $at (1, 300, length($bytes) - 1) {
    for my $how (qw/ close reset half_close /) {
        $c = $t->client();
        $c->send(substr($bytes, 0, $at));
        sleep(0.01);
        $c->$how();

        if ($how eq 'half_close') {
            ok($c->closed(), "half-close after $at bytes: closed");
            $c->close();
        }
    }
}

answered($t->post('/v', $body, @text), 'a good request after all that');

# empty fields are absent

$r = $t->post('/v', [ prompt => 'x', image => file('', ''), model => '',
                      max_tokens => '', system => '', stop => '',
                      prompt => '' ], @text);
is($r->{body}, "roles=user;pictures=0;sha=;prompt=x\n", 'empty fields');

# settings reach the engine

$t->post('/v', [ prompt => 'x', max_tokens => 7, temperature => '0.5',
                 top_p => '0.25', top_k => 40, min_p => '0.125', seed => -1,
                 stop => "\n\n", stop => 'END', detail => 'low',
                 image => file('a', 'aa'), model => 'fake' ]);
($line) = ($engine->lines(qr/^request /))[-1];

for my $part (' model="fake"', ' max_tokens=7', ' temperature=0.5',
              ' top_p=0.25', ' top_k=40', ' min_p=0.125',
              ' seed=18446744073709551615', ' stop[0]="\x0a\x0a"',
              ' stop[1]="END"', ' detail[0]=low', ' n=1 ')
{
    ok(index($line, $part) >= 0, "the engine gets$part") or diag($line);
}

is(scalar $engine->lines(qr/WRONG|bad record/), 0, 'every sum was right');

$t->done();
