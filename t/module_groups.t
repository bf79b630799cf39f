#!/usr/bin/perl

# vlm_engine: groups of engines, and which of them a request goes to.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;

my $t = VLM::Test->new();

# the configuration

my $pass = 'location /v { vlm_pass g; }';

for (['vlm_engine g { }', 'no engines are in group "g"'],
     ['vlm_engine unix:/g { server unix:/a; }', 'invalid name "unix:/g"'],
     ['vlm_engine g { server /a; }', 'invalid engine "/a"'],
     ['vlm_engine g { server unix:/a max_fails=x; }',
      'invalid parameter "max_fails=x"'],
     ['vlm_engine g { server unix:/a fail_timeout=1x; }',
      'invalid parameter "fail_timeout=1x"'],
     ['vlm_engine g { server unix:/a down; }', 'invalid parameter "down"'],
     ['vlm_engine g { affinity image; }', 'no engines are in group "g"'],
     ['vlm_engine g { server unix:/a; affinity most; }',
      'invalid affinity "most"'],
     ['vlm_engine g { server; }', 'unexpected "server"'],
     ['vlm_engine g { keepalive 5; }', 'unexpected "keepalive"'],
     ['vlm_engine g { server unix:/a; } vlm_engine g { server unix:/b; }',
      '"vlm_engine" directive is duplicate'],
     ['vlm_engine g { ' . join(' ', map { "server unix:/$_;" } 0 .. 64) . ' }',
      'more than 64 engines in one group'],
     ['', 'invalid engine "g" in'])
{
    my ($http, $why) = @$_;
    my ($good, $said) = $t->test_config(http => $http, locations => $pass);
    ok(!$good, 'refused: ' . substr($http, 0, 60));
    like($said, qr/\Q$why\E/, 'its message');
}

my ($good) = $t->test_config(locations => $pass,
    server => '} vlm_engine g { server unix:/a max_fails=0 fail_timeout=3s '
              . 'backup; affinity least; } server { ');
ok($good, 'named before it is defined');

# three engines, a backup

my %engines = map { $_ => $t->engine($_) } qw/ a b c d /;

$t->nginx(http => <<'EOF_HTTP', locations => <<'EOF_CONF');
vlm_engine g {
    server unix:%%DIR%%/a.sock fail_timeout=1s;
    server unix:%%DIR%%/b.sock fail_timeout=1s;
    server unix:%%DIR%%/c.sock fail_timeout=1s;
    server unix:%%DIR%%/d.sock backup;
}

vlm_engine image {
    server unix:%%DIR%%/a.sock fail_timeout=1s;
    server unix:%%DIR%%/b.sock fail_timeout=1s;
    server unix:%%DIR%%/c.sock fail_timeout=1s;
    affinity image;
}

vlm_engine mixed {
    server unix:%%DIR%%/hangs.sock;
    server unix:%%DIR%%/well.sock;
    server unix:%%DIR%%/deaf.sock;
}

log_format engine '$uri $status $vlm_engine';
access_log %%DIR%%/access.log engine;
EOF_HTTP
location /v {
    vlm_pass g;
    vlm_connect_timeout 5s;
    vlm_read_timeout 1s;
}

location /image {
    vlm_pass image;
    vlm_connect_timeout 5s;
}

location /mixed {
    vlm_pass mixed;
    vlm_connect_timeout 4s;
}
EOF_CONF

# how many requests each engine has got since the last call

my %seen;

sub got {
    my @got;

    for my $name (sort keys %engines) {
        my $n = $engines{$name}->lines(qr/^request /);
        push @got, $n - ($seen{$name} // 0);
        $seen{$name} = $n;
    }

    return \@got;
}

sub ok_posts {
    my ($n, $uri, @form) = @_;
    @form = (prompt => 'x') if !@form;
    return scalar grep { $t->post($uri, [ @form ])->{status} == 200 } 1 .. $n;
}

# all are connected by the first requests

ok(wait_for(sub { ok_posts(1, '/v');
                  my $n = () = $t->log() =~ /is connected/g; $n >= 3 }),
   'three engines are connected');
got();

is(ok_posts(9, '/v'), 9, 'one after the other');
is_deeply(got(), [ 3, 3, 3, 0 ], 'to each in turn');

my @c = map {
    my $c = $t->client();
    $c->send(request('/v', form([ prompt => '!slow 40 20' ])));
    $c->read_until(qr/t1/);
    $c;
} 1 .. 12;

is_deeply(got(), [ 4, 4, 4, 0 ], 'to the one with the fewest');
$_->read_until(qr!DONE!) for @c;

like($t->access_log(), qr!^/v 200 unix:\Q$t->{dir}\E/[abc]\.sock$!m,
     '$vlm_engine');

# one busy: the others get the rest

my @busy = map {
    my $c = $t->client();
    $c->send(request('/v', form([ prompt => '!progress' ])));
    $c;
} 1 .. 3;
ok(wait_for(sub { 3 == grep { $_->lines(qr/^request .*!progress/) }
                  values %engines }), 'three that stay');
got();
$busy[0]->reset();
$busy[1]->reset();
$engines{$_}->lines(qr/^cancelled /) for keys %engines;
ok(wait_for(sub { 2 == map { $_->lines(qr/^cancelled /) } values %engines }),
   'two have left');

is(ok_posts(6, '/v'), 6, 'beside a busy one');
my $shares = got();
is_deeply([ sort @$shares ], [ 0, 0, 3, 3 ], 'it gets none');
$busy[2]->reset();

# one that is gone, one that drains

$engines{a}->stop();
$engines{b}->signal('USR1');
ok(wait_for(sub { ok_posts(1, '/v'); my $g = got(); !$g->[0] && !$g->[1] }),
   'one is gone, one drains');
is(ok_posts(5, '/v'), 5, 'the third serves');
is_deeply(got(), [ 0, 0, 5, 0 ], 'all of them');

# none but the backup; not even that

$engines{c}->stop();
ok(wait_for(sub { ok_posts(1, '/v'); got()->[3] }), 'the backup is asked');
is(ok_posts(4, '/v'), 4, 'the backup serves');
is_deeply(got(), [ 0, 0, 0, 4 ], 'it alone');

$engines{d}->stop();
my $r;
ok(wait_for(sub { $r = $t->post('/v', [ prompt => 'x' ]);
                  $r->{status} == 503 }), 'none: 503, since one drains');
is(json($r->{body})->{error}{code}, 'engine_draining', 'its code');

$engines{b}->stop();
ok(wait_for(sub { $t->post('/v', [ prompt => 'x' ])->{status} == 502 }),
   'none at all: 502');

# back again, after fail_timeout

$_->start() for values %engines;
ok(wait_for(sub { ok_posts(1, '/v') }), 'service returns');
ok(wait_for(sub { got(); ok_posts(3, '/v');
                  join(' ', @{got()}) eq '1 1 1 0' }), 'to all of them');

# one that fails is left out for fail_timeout

my ($bad) = do {
    $r = $t->post('/v', [ prompt => '!silent' ]);
    is($r->{status}, 504, 'silence');
    my $g = got();
    grep { $g->[$_] } 0 .. 2;
};

is(ok_posts(4, '/v'), 4, 'after it');
is(got()->[$bad], 0, 'it is left out');
ok(wait_for(sub { got(); ok_posts(3, '/v');
                  join(' ', @{got()}) eq '1 1 1 0' }), 'and comes back');

# a request whose engine is lost while its body arrives goes to another

my $body = form([ prompt => 'x' ]);
my @half = map {
    my $c = $t->client();
    $c->send(substr(request('/v', $body), 0, -10));
    $c;
} 1 .. 6;
ok_posts(3, '/v');
got();
$engines{a}->kill_now();
ok($t->wait_log(qr/a\.sock" is lost/), 'an engine dies');
$_->send(substr($body, -10)) for @half;
is(scalar(grep { $_->read_answer()->{status} == 200 } @half), 6,
   'the others take its uploads');
is(got()->[0], 0, 'it got none');
$engines{a}->start();

# the same picture to the same engine

sub picture { file('a.jpg', "picture $_[0] " x 100) }

ok(wait_for(sub { ok_posts(1, '/image');
                  ok_posts(1, '/v');
                  got()->[0] }), 'all are back');
ok_posts(6, '/image', image => picture(1));
my $first = got();
is(scalar(grep { $_ == 6 } @$first), 1, 'six times to one engine')
    or diag("@$first");

my (%of, %used);

for my $i (1 .. 40) {
    ok_posts(1, '/image', image => picture($i), prompt => "question $i");
    my $g = got();
    ($of{$i}) = grep { $g->[$_] } 0 .. 2;
    $used{$of{$i}}++;
}

is(scalar keys %used, 3, 'different pictures: all engines');

# one is gone: its pictures move, the others stay

my $gone = $of{1};
my $name = (sort keys %engines)[$gone];
my $lost = () = $t->log() =~ /$name\.sock" is lost/g;
$engines{$name}->stop();
ok(wait_for(sub { my $n = () = $t->log() =~ /$name\.sock" is lost/g;
                  $n > $lost }), 'one is gone');

my $moved = 0;

for my $i (1 .. 40) {
    is(ok_posts(1, '/image', image => picture($i)), 1, "picture $i is served")
        if $of{$i} == $gone;
    next if $of{$i} == $gone;

    got();
    ok_posts(1, '/image', image => picture($i));
    $moved++ if !got()->[$of{$i}];
}

is($moved, 0, 'the others stay where they are');
$engines{$name}->start();

is(ok_posts(3, '/image', prompt => 'no picture'), 3, 'a question without one');

# one that is well beside two that accept no worker

my @mixed = ($t->engine('hangs', '--mode', 'hang'), $t->engine('well'),
             $t->engine('deaf', '--mode', 'no-accept'));

is(scalar(grep { $t->post('/mixed', [ prompt => 'x' ])->{status} == 200 }
          1 .. 3), 3, 'nobody waits for an engine that hangs');
is(scalar $mixed[1]->lines(qr/^request /), 3, 'another one serves');

$t->done();
