#!/usr/bin/perl

# Variables in the access log.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;

my $t = VLM::Test->new();
my $engine = $t->engine('a');

my @names = qw/ status engine model images image_tokens prompt_tokens
                cached_tokens completion_tokens image_cache queue_time
                encode_time first_token_time total_time /;
my $format = join(' ', map { "$_=\$vlm_$_" } @names);

$t->nginx(http => "log_format vars '\$request_id \$status $format';\n"
              . 'access_log %%DIR%%/access.log vars;',
          locations => <<'EOF_CONF');
location /v {
    vlm_pass unix:%%DIR%%/a.sock;
}

location /other {
    return 204;
}
EOF_CONF

# of one answer, by name; the log is written when the request is freed

sub logged {
    my ($r) = @_;

    my $id = $r->{h}{'x-request-id'} // '[0-9a-f]{32}';
    my $line;

    wait_for(sub { ($line) = $t->access_log() =~ /^$id (.*)$/m });

    return { $line =~ /(\w+)=(\S+)/g };
}

my $image = file('a', 'aa');
my $v = logged($t->post('/v', [ image => $image, image => $image,
                                prompt => 'x' ]));

is($v->{status}, 200, 'status');
is($v->{engine}, "unix:$t->{dir}/a.sock", 'engine');
is($v->{model}, 'fake', 'model');
is($v->{images}, 2, 'images');
is($v->{image_tokens}, 128, 'image_tokens');
cmp_ok($v->{prompt_tokens}, '>=', 138, 'prompt_tokens');
cmp_ok($v->{cached_tokens}, '>', 0, 'cached_tokens');
is($v->{completion_tokens}, 9, 'completion_tokens');
is($v->{image_cache}, 'miss,joined', 'image_cache');
is($v->{queue_time}, '0.002', 'queue_time');
is($v->{encode_time}, '0.004', 'encode_time');
is($v->{first_token_time}, '0.015', 'first_token_time');
like($v->{total_time}, qr/^\d+\.\d{3}$/, 'total_time');

$v = logged($t->post('/v', [ prompt => 'x' ]));
is($v->{images}, 0, 'no images');
is($v->{image_cache}, '-', 'nothing about them');

$v = logged($t->post('/v', [ top_p => 'x' ]));
is($v->{status}, 400, 'status of a bad form');
is($v->{first_token_time}, '-', 'no token');

$v = logged($t->post('/v', [ prompt => '!late-error 2 503 a - b' ]));
is($v->{status}, 503, 'status of an error in mid-stream');

my $c = $t->client();
$c->send(request('/v', form([ prompt => '!silent 2' ])));
$c->read_until(qr/\r\n\r\n/) =~ /X-Request-Id: (\w+)/;
my $id = $1;
$c->reset();
$v = logged({ h => { 'x-request-id' => $id } });
is($v->{status}, 499, 'status of a client that left');

$t->exchange("GET /other HTTP/1.1\r\nHost: localhost\r\n\r\n");
ok(wait_for(sub { $t->access_log() =~ / 204 (.*)$/m }), 'another location');
$t->access_log() =~ / 204 (.*)$/m;
is($1, join(' ', map { "$_=-" } @names), 'has none of them');

$t->done();
