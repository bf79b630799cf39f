#!/usr/bin/perl

# Forms as real clients send them: t/fixtures/forms, a whole request a file.
# There line ends are LF instead of CRLF, <PICTURE> stands for a picture,
# <PICTURE-LENGTH> and <LENGTH> for its length and that of the body.  The
# picture imitates the form's own boundary.  Each is sent in one piece and byte
# by byte; the engine must see exactly the picture and the prompt.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;
use Digest::SHA qw/ sha256_hex /;

# what is asked and how many pictures there are, where it is not this

my $prompt = 'What is on the mat?';
my %prompts = (
    chrome => "Was liegt\r\nauf der Matte? \xf0\x9f\x90\xb1",
    'dotnet-utf8' => "Was liegt da? \xc3\x84",
    dart => "Was liegt da? \xc3\x84",
);
my %pictures = ('chrome-fetch' => 2);

my $t = VLM::Test->new();
my $engine = $t->engine('a');

$t->nginx(locations => <<'EOF_CONF');
location /v {
    vlm_pass unix:%%DIR%%/a.sock;
}
EOF_CONF


# bytes that nearly end the part: NUL, line ends, the boundary but for its last
# byte, without the dashes, with a byte behind it, and half of a line end last

sub picture {
    my ($boundary) = @_;

    my $short = substr($boundary, 0, -1);

    return "\xff\xd8\xff\xe0\0\x10JFIF\0\r\n\r\n--\r\n--$short\r\n$boundary"
        . "\r\n--${boundary}x\r\r\n--$boundary-\r\n\n--$boundary--"
        . pack('C*', 0 .. 255) . "\xff\xd9\r\n\r";
}


# the request as bytes, and the picture that it carries

sub fixture {
    my ($file) = @_;

    my ($head, $body) = split /\n\n/, VLM::Test::slurp($file), 2;
    my ($boundary) = $head =~ /boundary="?([^";\n]+)/i or die $file;
    my $picture = picture($boundary);
    my $length = length($picture);

    s/\n/\r\n/g for $head, $body;

    $body =~ s/<PICTURE-LENGTH>/$length/g;
    $body =~ s/<PICTURE>/$picture/g;

    if ($head !~ /^Transfer-Encoding: chunked/m) {
        $length = length($body);
        $head =~ s/<LENGTH>/$length/ or die "$file: no length";

    } else {
        $body = join('', map { sprintf("%x\r\n%s\r\n", length($_), $_) }
                         unpack('(a100)*', $body)) . "0\r\n\r\n";
    }

    return ("$head\r\n\r\n$body", $picture);
}


# what the engine has logged of a request

sub seen {
    my ($id) = @_;

    my ($line) = $engine->lines(qr/^request id=$id /) or return undef;
    my @pictures = $line =~ / picture\[\d+\]=(\d+:[0-9a-f]{64}:ok) /g;
    my ($text) = $line =~ / prompt="((?:[^"\\]|\\.)*)"/;

    $text =~ s/\\x([0-9a-f]{2})/chr(hex($1))/ge if defined $text;

    return { pictures => \@pictures, prompt => $text };
}


sub served {
    my ($name, $answer, $n, $picture, $text) = @_;

    is($answer->{status}, 200, "$name: status") or diag($answer->{body});

    my $one = length($picture) . ':' . sha256_hex($picture) . ':ok';

    is_deeply(seen($answer->{h}{'x-request-id'} // 'none'),
              { pictures => [ ($one) x $n ], prompt => $text },
              "$name: exactly the picture and the prompt");
}

my @fixtures = sort glob('t/fixtures/forms/*.http');
cmp_ok(scalar(@fixtures), '>=', 25, 'there are fixtures');

for my $file (@fixtures) {
    my ($name) = $file =~ m!([^/]+)\.http$!;
    my ($bytes, $picture) = fixture($file);
    my @expected = ($pictures{$name} // 1, $picture,
                    $prompts{$name} // $prompt);
    my $c = $t->client();

    $c->send($bytes);
    my $answer = $c->read_answer();
    served("$name, in one piece", $answer, @expected);

    # on the same connection: the first body was taken to its end

    if (($answer->{h}{connection} // '') eq 'close') {
        $c->close();
        $c = $t->client();
    }

    $c->send_pieces($bytes, 1);
    served("$name, byte by byte", $c->read_answer(), @expected);
    $c->close();
}

# clients that happen to be here

my $picture = picture('anything');
my $file = $t->write_file("K\xc3\xa4tzchen.jpg", $picture);

sub live {
    my ($name, @command) = @_;

    my $before = $engine->lines(qr/^request /);
    my $status = reap(spawn("$t->{dir}/$name.out", @command), 60);

    is($status, 0, "$name: runs")
        or diag(VLM::Test::slurp("$t->{dir}/$name.out"));

    my @lines = $engine->lines(qr/^request /);
    is(scalar(@lines), $before + 1, "$name: a request");
    my ($id) = ($lines[-1] // '') =~ /^request id=(\w+) /;

    served($name, { status => 200, h => { 'x-request-id' => $id } }, 1,
           $picture, $prompt);
}

sub have { system("$_[0] >/dev/null 2>&1") == 0 }

live('curl -F', 'curl', '-sSf', '-F', "image=\@$file", '-F',
     "prompt=$prompt", $t->url('/v'));
live('curl -F with a type and a name', 'curl', '-sSf', '-F',
     "prompt=$prompt;type=text/plain", '-F',
     "image=\@$file;type=image/jpeg;filename=\"a \\\"b\\\"; c.jpg\"",
     $t->url('/v'));
live('curl -F of a pipe', 'sh', '-c', 'cat "$1" | curl -sSf -F image=@- '
     . '-F "prompt=$2" "$3"', 'sh', $file, $prompt, $t->url('/v'));

my $node = <<'EOF_NODE';
const [file, prompt, url] = process.argv.slice(1);
const bytes = require('fs').readFileSync(file);
const form = new FormData();
form.append('prompt', prompt);
form.append('image', new Blob([bytes], { type: 'image/jpeg' }),
            'Kätz"chen.jpg');
fetch(url, { method: 'POST', body: form }).then(async (r) => {
    await r.text();
    process.exit(r.status == 200 ? 0 : 1);
});
EOF_NODE

my $python = <<'EOF_PYTHON';
import sys, requests
file, prompt, url = sys.argv[1:]
r = requests.post(url, data={'prompt': prompt},
                  files={'image': (file, open(file, 'rb'), 'image/jpeg')})
sys.exit(r.status_code != 200)
EOF_PYTHON

  SKIP: {
    skip('no node with fetch', 1) if !have('node -e "new FormData(); fetch"');
    live('node', 'node', '-e', $node, $file, $prompt, $t->url('/v'));
}

  SKIP: {
    skip('no Python with requests', 1)
        if !have('python3 -c "import requests"');
    live('requests', 'python3', '-c', $python, $file, $prompt, $t->url('/v'));
}

$t->done();
