#!/usr/bin/perl

# HTTP in its versions: 1.0, methods, Expect, lengths that are wrong in either
# direction, 2 with TLS, and behind a proxy with its usual settings.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;
use Digest::SHA qw/ sha256_hex /;
use Time::HiRes qw/ sleep /;

my $t = VLM::Test->new();
my $engine = $t->engine('a');
my $tls = $t->free_port();
my $h2 = $t->free_port();

my $status = reap(spawn("$t->{dir}/openssl.out", qw/ openssl req -x509 -nodes
    -newkey rsa:2048 -days 2 -subj /, '/CN=localhost', '-keyout',
    "$t->{dir}/key.pem", '-out', "$t->{dir}/cert.pem"), 60);
my $have_tls = defined $status && $status == 0;

my $listen = "listen 127.0.0.1:$h2 http2;\n";
$listen .= "listen 127.0.0.1:$tls ssl http2;\n"
    . "ssl_certificate %%DIR%%/cert.pem; ssl_certificate_key %%DIR%%/key.pem;"
    if $have_tls;

$t->nginx(http => 'client_body_timeout 2s; vlm_max_tokens 100000;',
          server => $listen, locations => <<'EOF_CONF');
location /v {
    vlm_pass unix:%%DIR%%/a.sock;
}

location /small {
    vlm_pass unix:%%DIR%%/a.sock;
    vlm_max_request_size 20k;
    vlm_max_image_size 10k;
}

# a proxy as most are: HTTP/1.0, buffering both ways

location /plain/ {
    proxy_pass http://127.0.0.1:%%PORT%%/;
    client_max_body_size 8m;
}

location /unbuffered/ {
    proxy_pass http://127.0.0.1:%%PORT%%/;
    proxy_http_version 1.1;
    proxy_request_buffering off;
    client_max_body_size 8m;
}
EOF_CONF

my $picture = join('', map { pack('N', $_ * 2654435761 & 0xffffffff) }
                       1 .. 25_000);
my $sha = substr(sha256_hex($picture), 0, 8);
my $body = form([ image => file('a.jpg', $picture), prompt => 'x' ]);
my $expected = "roles=user;pictures=1;sha=$sha;prompt=x\n";
my @text = (headers => [ 'Accept: text/plain' ]);
my $short = form([ prompt => 'x' ]);

sub good {
    my ($name) = @_;
    my $r = $t->post('/v', $short, @text);
    is($r->{body}, "roles=user;pictures=0;sha=;prompt=x\n",
       "$name: a good request afterwards");
}


# HTTP/1.0: no chunks, the end of the connection is the end

my $c = $t->client();
$c->send(request('/v', $body, @text, version => '1.0'));
my $r = $c->read_answer();
is($r->{status}, 200, 'HTTP/1.0: status');
is($r->{body}, $expected, 'HTTP/1.0: body');
is($r->{h}{'transfer-encoding'}, undef, 'HTTP/1.0: no chunks');
is($c->closed(), 'eof', 'HTTP/1.0: closed');
$c->close();

$c = $t->client();
$c->send(request('/v', form([ prompt => '!slow 5 20' ]), version => '1.0'));
$r = $c->read_answer();
is((events($r->{body}))[-1], '[DONE]', 'HTTP/1.0: a stream');
unlike($r->{body}, qr/^[0-9a-f]+\r\n/m, 'HTTP/1.0: of events alone');
$c->close();

$c = $t->client();
$c->send(request('/v', form([ prompt => 'x', stream => 'false' ]),
                 version => '1.0', headers => [ 'Connection: keep-alive' ]));
$r = $c->read_answer();
is(json($r->{body})->{object}, 'chat.completion', 'HTTP/1.0: an object');

if (defined $r->{h}{'content-length'}) {
    $c->send(request('/v', $short, @text, version => '1.0'));
    is($c->read_answer()->{status}, 200, 'HTTP/1.0: keep-alive');

} else {
    ok($c->closed(), 'HTTP/1.0: closed');
}

$c->close();

$c = $t->client();
$c->send(request('/v', form([ top_p => 'x' ]), version => '1.0'));
$r = $c->read_answer();
is($r->{status}, 400, 'HTTP/1.0: an error');
is(json($r->{body})->{error}{param}, 'top_p', 'HTTP/1.0: in JSON');
$c->close();

$c = $t->client();
$c->send(request('/v', form([ prompt => '!late-error 2 500 broken - no' ]),
                 @text, version => '1.0'));
$c->read_head();
is($c->closed(), 'reset', 'HTTP/1.0: a text that is cut is told by a reset');
$c->close();

$c = $t->client();
$c->send("POST /v HTTP/1.0\r\nContent-Type: " . form_type() . "\r\n\r\n"
         . $short);
$r = $c->read_answer();
cmp_ok($r->{status}, '>=', 400, 'HTTP/1.0 without a length: an error');
ok($c->closed(), 'HTTP/1.0 without a length: closed');
$c->close();
good('HTTP/1.0');


# methods

for my $method (qw/ OPTIONS HEAD GET PUT DELETE PATCH /) {
    for my $version ('1.1', '1.0') {
        $c = $t->client();
        $c->send("$method /v HTTP/$version\r\nHost: localhost\r\n"
                 . "Connection: close\r\n\r\n");
        $r = $c->read_head();
        is($r->{status}, 405, "$method, $version: status");
        is($r->{h}{allow}, 'POST', "$method, $version: Allow");
        ok($c->closed(), "$method, $version: closed");

        my $error = json($c->{buf})->{error};
        $method eq 'HEAD' ? is($c->{buf}, '', "$method, $version: no body")
                          : is($error->{code}, 'method_not_allowed',
                               "$method, $version: code");
        $c->close();
    }
}

# on one connection, with bodies, as a browser's preflight comes before a POST

$c = $t->client();

for my $method (qw/ OPTIONS PUT HEAD /) {
    $c->send(request('/v', $method eq 'HEAD' ? '' : $short,
                     method => $method));
    $r = $method eq 'HEAD' ? $c->read_head() : $c->read_answer();
    is($r->{status}, 405, "$method on a connection");
}

$c->send(request('/v', $body, @text));
is($c->read_answer()->{body}, $expected, 'and a POST behind them');
$c->close();


# Expect

for my $value ('100-continue', '100-Continue') {
    $c = $t->client();
    my $bytes = request('/v', $body, headers => [ 'Accept: text/plain',
                                                  "Expect: $value" ]);
    my $head = index($bytes, "\r\n\r\n") + 4;
    $c->send(substr($bytes, 0, $head));
    is($c->read_head()->{status}, 100, "Expect: $value");
    $c->send_pieces(substr($bytes, $head), 10_000);
    is($c->read_answer()->{body}, $expected, "Expect: $value: answered");
    $c->close();

    # who does not wait for it

    $c = $t->client();
    $c->send($bytes);
    is($c->read_answer()->{body}, $expected, "Expect: $value: not waited for");
    $c->close();
}

$c = $t->client();
my $bytes = request('/v', $body, chunked => 5000, headers =>
                    [ 'Accept: text/plain', 'Expect: 100-continue' ]);
my $head = index($bytes, "\r\n\r\n") + 4;
$c->send(substr($bytes, 0, $head));
is($c->read_head()->{status}, 100, 'Expect with chunks');
$c->send(substr($bytes, $head));
is($c->read_answer()->{body}, $expected, 'Expect with chunks: answered');
$c->close();


# Content-Length less than the body: the rest is no request

$c = $t->client();
$c->send(request('/v', $short, length => length($short) - 10));
$r = $c->read_answer();
is($r->{status}, 400, 'a length too small: status');
is(json($r->{body})->{error}{code}, 'invalid_multipart',
   'a length too small: code');
$r = $c->read_answer();
ok($r->{status} == 400 || $r->{status} == 0,
   "a length too small: the rest is no request: $r->{status}");
$c->close();
good('a length too small');

# just without the last line end, which nobody needs

$c = $t->client();
$c->send(request('/v', substr($short, 0, -2), @text, close => 1));
is($c->read_answer()->{status}, 200, 'without the last line end');
$c->close();

# more than the body: it is waited for, then told or given up

my $requests = $engine->lines(qr/^request /);

$c = $t->client();
$c->send(request('/v', $short, length => length($short) + 10));
$r = $c->read_answer();
is($r->{status}, 408, 'a length too large: status');
is(json($r->{body})->{error}{code} // '', 'upload_timeout',
   'a length too large: code');
$c->close();

for my $how (qw/ half_close close reset /) {
    $c = $t->client();
    $c->send(request('/v', $short, length => length($short) + 10));
    sleep(0.05);
    $c->$how();

    if ($how eq 'half_close') {
        ok($c->closed(), 'a length too large, half-closed: closed');
        $c->close();
    }
}

is(scalar $engine->lines(qr/^request /), $requests,
   'a length too large: nothing is submitted');
good('a length too large');

# with what follows taken for the rest of the body

$c = $t->client();
$c->send(request('/v', $short, @text, length => length($short) + 10)
         . request('/v', $short, @text));
$r = $c->read_answer();
is($r->{status}, 200, 'a length too large, the next request behind it');
is($c->read_answer()->{status}, 400, 'whose rest is none');
$c->close();

# lengths that are none, or two

for my $length (-1, 'x', '1x', '99999999999999999999', '') {
    $r = $t->exchange(request('/v', $short, length => $length));
    cmp_ok($r->{status}, '>=', 400, "Content-Length: $length");
}

for my $case ([ 'two lengths', 'Content-Length: 5' ],
              [ 'a length and chunks', 'Transfer-Encoding: chunked' ],
              [ 'another encoding', 'Transfer-Encoding: gzip' ])
{
    my ($name, $line) = @$case;
    $r = $t->exchange(request('/v', $short, headers => [ $line ]));
    cmp_ok($r->{status}, '>=', 400, $name);
}

for my $chunk ("x\r\n", "-1\r\n", "fffffffffffffffff\r\n", "5\r\nabcdefg",
               "5;" . 'x' x 100 . "\r\nabcdefg")
{
    $c = $t->client();
    $c->send("POST /v HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
             . 'Content-Type: ' . form_type() . "\r\n\r\n$chunk");
    cmp_ok($c->read_answer()->{status}, '>=', 400,
           'a bad chunk: ' . substr($chunk =~ s/\r\n/ /gr, 0, 20));
    $c->close();
}

good('bad lengths');


# a proxy in front

for my $proxy (qw/ plain unbuffered /) {
    is($t->post("/$proxy/v", $body, @text)->{body}, $expected,
       "$proxy proxy: an upload");
    is($t->post("/$proxy/v", $body, @text, chunked => 3000)->{body},
       $expected, "$proxy proxy: in chunks");

    $c = $t->client();
    $c->send_pieces(request("/$proxy/v", $body, @text), 9000);
    is($c->read_answer()->{body}, $expected, "$proxy proxy: in pieces");
    $c->close();

    $c = $t->client();
    $c->send(request("/$proxy/v", form([ prompt => '!silent 2' ])));
    ok(defined $c->read_until(qr/"content":"/),
       "$proxy proxy: tokens arrive while the answer goes on");
    my $cancels = $engine->lines(qr/^cancel/);
    $c->reset();
    ok($engine->wait_lines(qr/^cancel/, $cancels + 1),
       "$proxy proxy: cancelled when the client leaves");

    $r = $t->post("/$proxy/v", [ prompt => '!slow 10 10' ]);
    is((events($r->{body}))[-1], '[DONE]', "$proxy proxy: a whole stream");
    is($r->{h}{'x-accel-buffering'}, undef,
       "$proxy proxy: what is for the proxy stays there");

    $r = $t->post("/$proxy/v", [ prompt => '!busy 7' ]);
    is("$r->{status} $r->{h}{'retry-after'}", '503 7',
       "$proxy proxy: 503 and Retry-After");
    is(json($r->{body})->{error}{code}, 'overloaded',
       "$proxy proxy: the error");

    $r = $t->post("/$proxy/v", '', method => 'GET', type => '');
    is("$r->{status} $r->{h}{allow}", '405 POST', "$proxy proxy: 405");

    $r = $t->post("/$proxy/small", $body);
    is($r->{status}, 413, "$proxy proxy: 413");

    $r = $t->post("/$proxy/v", [ prompt => '!late-error 2 500 broken - no' ]);
    unlike($r->{body}, qr/\[DONE\]/, "$proxy proxy: an error in a stream");
    like($r->{body}, qr/"code":"broken"/, "$proxy proxy: is passed on");

    $r = $t->post("/$proxy/v", [ prompt => '!late-error 2 500 broken - no' ],
                  @text);
    is($r->{complete}, 0, "$proxy proxy: a text that is cut is cut");
    good("$proxy proxy");
}


# HTTP/2, with TLS and without

my $file = $t->write_file('picture', $picture);
my $form = $t->write_file('form', $body);
my @type = ('-H', 'Content-Type: ' . form_type());
my @urls = ([ 'h2c', '--http2-prior-knowledge', "http://127.0.0.1:$h2" ]);

push @urls, [ 'h2', '--http2', "https://127.0.0.1:$tls" ] if $have_tls;
diag('no TLS: no certificate') if !$have_tls;

for my $case (@urls) {
    my ($name, $option, $url) = @$case;
    my @accept = ('-H', 'Accept: text/plain');

    # exit status, the last status line's version and number, body

    my $curl = sub {
        my (@args) = @_;

        my ($rc, $got) = $t->curl('-k', '-i', $option, @args);
        my $status = '';

        while ($got =~ s!^HTTP/(\S+ \d+) *\r\n.*?\r\n\r\n!!s) {
            $status = $1;
        }

        return ($rc, $status, $got);
    };

    my ($rc, $code, $got) = $curl->(@accept, '-F', "image=\@$file", '-F',
                              'prompt=x', "$url/v");
    is("$code $got", "2 200 $expected", "$name: an upload");

    ($rc, $code, $got) = $curl->(@accept, @type, '-T', $form, '-X', 'POST',
                           '-H', 'Content-Length:', "$url/v");
    is("$code $got", "2 200 $expected", "$name: without a length");

    ($rc, $code, $got) = $curl->(@accept, '-F', "image=\@$file", '-F',
                           'prompt=x', '-H', 'Expect: 100-continue',
                           "$url/v");
    is("$code $got", "2 200 $expected", "$name: Expect");

    # read slower than it is said, through HTTP/2's own windows

    ($rc, $code, $got) = $curl->(@accept, '--limit-rate', '400k', '-F',
                           'prompt=!flood 100 4000', "$url/v");
    is($rc, 0, "$name: a slow reader");
    is(length($got), 400_000 + 1, "$name: has everything");

    ($rc, $code, $got) = $curl->('-F', 'top_p=x', "$url/v");
    like("$code $got", qr/^2 400 .*"param":"top_p"/s, "$name: an error");

    ($rc, $code, $got) = $curl->('-X', 'OPTIONS', "$url/v");
    like("$code $got", qr/^2 405 .*"method_not_allowed"/s, "$name: OPTIONS");

    ($rc, $code, $got) = $curl->('-I', "$url/v");
    is("$code $got", '2 405 ', "$name: HEAD");

    ($rc, $code, $got) = $curl->(@accept, '-F',
                           'prompt=!late-error 2 500 broken - no', "$url/v");
    isnt($rc, 0, "$name: a text that is cut: the stream is reset");

    # a length that is wrong is a reset or an error, never a good answer

    for my $length (length($body) - 100, length($body) + 100) {
        $requests = $engine->lines(qr/^request /);
        ($rc, $code, $got) = $curl->(@accept, @type, '--max-time', 10,
                               '--data-binary', "\@$form", '-H',
                               "Content-Length: $length", "$url/v");
        ok($rc != 0 || $code =~ /^2 4/, "$name: a wrong length")
            or diag($got);
        is(scalar $engine->lines(qr/^request /), $requests,
           "$name: a wrong length: nothing is submitted");
    }

    good($name);
}

is(scalar $engine->lines(qr/WRONG|bad record/), 0, 'every sum was right');

$t->done();
