#!/usr/bin/perl

# vlm_zone and vlm_status: what is counted, over all workers, reloads and
# deaths of workers.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;

my $t = VLM::Test->new();
my $engine = $t->engine('a');

my $locations = <<'EOF_CONF';
location /v {
    vlm_pass unix:%%DIR%%/a.sock;
    vlm_max_text_size 1k;
}

location /none {
    vlm_pass unix:%%DIR%%/none.sock;
}

location /status {
    vlm_status;
}
EOF_CONF

# the configuration

for (['vlm_zone vlm;', 'invalid zone "vlm"'],
     ['vlm_zone :64k;', 'invalid zone ":64k"'],
     ['vlm_zone vlm:x;', 'invalid zone "vlm:x"'],
     ['vlm_zone vlm:31k;', 'is smaller than 32768 bytes'],
     ['vlm_zone vlm:64k; vlm_zone other:64k;', 'is duplicate'],
     ['', '"vlm_status" needs a "vlm_zone"'])
{
    my ($http, $why) = @$_;
    my ($good, $said) = $t->test_config(http => $http,
                                        locations => $locations);
    ok(!$good, "refused: $http");
    like($said, qr/\Q$why\E/, 'its message');
}

my ($good) = $t->test_config(http => 'vlm_zone vlm:32k;',
                             locations => $locations);
ok($good, 'the smallest zone');

# one worker

my %conf = (http => 'vlm_zone vlm:64k;', locations => $locations);

$t->nginx(%conf);

sub status {
    my ($query, %opt) = @_;

    return $t->exchange(request('/status' . ($query // ''), '', type => '',
                                method => 'GET', close => 1, %opt));
}

# the text as { 'name{labels}' => value }

sub metrics {
    my %m;

    for (split /\n/, status()->{body}) {
        next if /^# (?:HELP|TYPE) ngx_vlm_\w+ .+/;

        /^(ngx_vlm_\w+(?:\{\w+="[^"]*"(?:,\w+="[^"]*")*\})?) ([0-9.]+)$/
            or die "bad line: $_";
        $m{$1} = $2;
    }

    return \%m;
}

sub n { metrics()->{"ngx_vlm_$_[0]"} }

sub total {
    my ($status) = @_;
    return n("requests_total{status=\"$status\"}");
}

my $r = status();

is($r->{status}, 200, 'status');
is($r->{h}{'content-type'}, 'text/plain; version=0.0.4; charset=utf-8',
   'its type');
is(total(200), 0, 'nothing yet');
is(n('requests_in_flight'), 0, 'nothing in flight');

my $size = length($r->{body});
my $line = status('', method => 'HEAD');
is($line->{status}, 200, 'HEAD');
is(status('', method => 'POST')->{status}, 405, 'POST');
is(status('', method => 'DELETE')->{status}, 405, 'DELETE');

my $j = json(status('?format=json')->{body});
is($j->{requests}{200}, 0, '?format=json');
is(status('', headers => [ 'Accept: application/json' ])->{h}{'content-type'},
   'application/json', 'Accept: application/json');
is(json(status('', headers => [ 'Accept: application/json' ])->{body})
   ->{requests}{200}, 0, 'Accept: its body');
like(status('?format=text', headers => [ 'Accept: application/json' ])
     ->{body}, qr/^# HELP/, '?format=text');

# requests of every kind

my $picture = 'x' x 1000;
my @two = (image => file('a', $picture), image => file('b', $picture),
           prompt => 'What?');

my $answer = json($t->post('/v', [ @two, stream => 'false' ])->{body});
$t->post('/v', [ @two ]);
$t->post('/v', [ prompt => 'x', max_tokens => 2 ]);
$t->post('/v', [ prompt => 'x', max_tokens => 0 ]);
$t->post('/v', [ prompt => '!error 404 model_not_found model no' ]);
$t->post('/v', [ prompt => '!late-error 2 500 broken - no' ]);
$t->post('/v', [ prompt => 'x' x 2000 ]);
$t->post('/v', '', method => 'GET');
$t->post('/v', '{}', type => 'text/html');
$t->post('/none', [ prompt => 'x' ]);
$t->post('/v', [ prompt => '!error 418 teapot - no' ]);

my $c = $t->client();
$c->send(request('/v', form([ prompt => '!slow 1000 5' ])));
$c->read_until(qr/t1/);
is(n('requests_in_flight'), 1, 'one in flight');
$c->reset();

ok(wait_for(sub { n('requests_in_flight') == 0 }), 'it left');

my $m = metrics();

is_deeply([ map { $m->{"ngx_vlm_requests_total{status=\"$_\"}"} }
            qw/ 200 400 404 405 413 415 499 500 502 503 504 other / ],
          [ 3, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1 ], 'each by its status');
is($m->{'ngx_vlm_request_success_total{finished_reason="stop"}'}, 2,
   'ends by themselves');
is($m->{'ngx_vlm_request_success_total{finished_reason="length"}'}, 1,
   'ends by max_tokens');
is($m->{ngx_vlm_images_total}, 4, 'images');
cmp_ok($m->{ngx_vlm_received_bytes_total}, '>', 4000, 'bytes');
is($m->{ngx_vlm_image_tokens_total}, 4 * 64, 'image tokens');
is($m->{'ngx_vlm_image_cache_total{outcome="miss"}'}, 2, 'misses');
is($m->{'ngx_vlm_image_cache_total{outcome="joined"}'}, 2, 'joined');
cmp_ok($m->{ngx_vlm_prompt_tokens_total}, '>=',
       2 * $answer->{usage}{prompt_tokens}, 'prompt tokens');
cmp_ok($m->{ngx_vlm_cached_tokens_total}, '>', 0, 'cached tokens');
cmp_ok($m->{ngx_vlm_generation_tokens_total}, '>=',
       2 * $answer->{usage}{completion_tokens} + 2 + 2 + 2,
       'generated tokens');
is($m->{ngx_vlm_time_to_first_token_seconds_count}, 5, 'first tokens');
is($m->{'ngx_vlm_time_to_first_token_seconds_bucket{le="+Inf"}'}, 5,
   'all in the last bucket');
is($m->{ngx_vlm_e2e_request_latency_seconds_count}, 3, 'answers');

# a first token is no gap: 7 + 7 + 1 + 1, and at least one of the aborted one

cmp_ok($m->{ngx_vlm_inter_token_latency_seconds_count}, '>=', 17, 'gaps');

my $last = 0;
my @le = grep { /inter_token.*_bucket/ } map { /^(\S+) / ? $1 : () }
         split /\n/, status()->{body};
is(scalar(grep { my $bad = $m->{$_} < $last; $last = $m->{$_}; $bad } @le), 0,
   'buckets are cumulative');

# the same as JSON

$j = json(status('?format=json')->{body});
is_deeply([ @{$j->{requests}}{qw/ 200 499 other /} ], [ 3, 1, 1 ],
          'JSON: requests');
is($j->{images}, 4, 'JSON: images');
is($j->{time_to_first_token}{count}, 5, 'JSON: a histogram');
is_deeply($j->{time_to_first_token}{buckets}[-1], [ undef, 5 ],
          'JSON: its last bucket');

# engines

my ($a, $none) = map { "unix:$t->{dir}/$_.sock" } qw/ a none /;

is(n("engine_up{engine=\"$a\"}"), 1, 'an engine is up');
is(n("engine_up{engine=\"$none\"}"), 0, 'another is not');
is(n("engine_state{engine=\"$a\",state=\"ready\"}"), 1, 'it is ready');
is(n("engine_state{engine=\"$a\",state=\"draining\"}"), 0, 'not draining');
is(n("engine_kv_blocks_free{engine=\"$a\"}"), 900, 'a gauge');
is(n("engine_kv_blocks_free{engine=\"$none\"}"), undef, 'none of the other');

$engine->signal('USR1');
ok(wait_for(sub { n("engine_state{engine=\"$a\",state=\"draining\"}") }),
   'it drains');
$engine->stop();
ok(wait_for(sub { n("engine_up{engine=\"$a\"}") == 0 }), 'it is gone');
is(json(status('?format=json')->{body})->{engines}[0]{up}, JSON::PP::false(),
   'JSON: it is gone');
$engine->start();
ok(wait_for(sub { n("engine_up{engine=\"$a\"}") }), 'it is back');

# a reload keeps what was counted, a request that goes on is counted too

$c = $t->client();
$c->send(request('/v', form([ prompt => '!slow 1000 100' ])));
$c->read_until(qr/t1/);

ok($t->reload(%conf), 'reload');
ok(wait_for(sub { n('workers') == 2 }), 'an old worker and a new one');
is(n('requests_in_flight'), 1, 'the old request is in flight');
is(total(200), 3, 'nothing is lost');
$t->post('/v', [ prompt => 'x' ]);
ok(wait_for(sub { total(200) == 4 }), 'the new worker counts');
$c->reset();
ok(wait_for(sub { n('workers') == 1 }), 'the old worker has left');
is(total(499), 2, 'it has counted until then');
is(n('requests_in_flight'), 0, 'nothing in flight');

for (1 .. 5) {
    $t->reload(%conf);
    $t->post('/v', [ prompt => 'x' ]);
}

ok(wait_for(sub { total(200) == 9 }), 'five reloads');

# another size makes another zone

$t->reload(%conf, http => 'vlm_zone vlm:128k;');
ok(wait_for(sub { total(200) == 0 }), 'a zone of another size is a new one');

# four workers, one of them killed

$t->reload(%conf, http => 'vlm_zone vlm:128k;', workers => 4,
           listen => 'reuseport');
ok(wait_for(sub { $t->workers() == 4 }), 'four workers');

$t->post('/v', [ prompt => 'x' ]) for 1 .. 40;
ok(wait_for(sub { total(200) == 40 }), 'counted over all of them');
cmp_ok(n('workers'), '>', 1, 'more than one has counted');

my @slow = map {
    my $c = $t->client();
    $c->send(request('/v', form([ prompt => '!slow 1000 20' ])));
    $c;
} 1 .. 8;
$_->read_until(qr/t1/) for @slow;
is(n('requests_in_flight'), 8, 'eight in flight');

kill('KILL', $_) for $t->workers();
$t->expect_errors(qr/exited on signal 9/);
ok(wait_for(sub { (eval { n('requests_in_flight') } // 1) == 0 }, 10),
   'killed: nothing in flight');
is(total(200), 40, 'killed: what was counted is there');
ok(wait_for(sub { $t->workers() == 4 }), 'new workers');
$t->post('/v', [ prompt => 'x' ]) for 1 .. 8;
ok(wait_for(sub { total(200) == 48 }), 'they go on');
$_->close() for @slow;

# without a master process

$t->stop();
$t->nginx(%conf, master => 0);
$t->post('/v', [ prompt => 'x' ]);
ok(wait_for(sub { total(200) == 1 }), 'without a master process');
is(n('workers'), 1, 'one process');

$t->done();
