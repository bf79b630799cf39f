#!/usr/bin/perl

# Many slow readers and many idle uploaders on one worker: what they cost is
# bounded by the configuration, others are served meanwhile.  A hundred of
# each, a thousand with VLM_LONG.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;
use Time::HiRes qw/ sleep /;

my $n = $ENV{VLM_LONG} ? 1000 : 100;
my $need = 4 * $n + 500;

# descriptors, for this process and all that it starts

my ($soft, $hard) = map { chomp; /^\d+$/ ? $_ : 1e9 }
                    map { scalar qx{sh -c "ulimit -${_}n"} } qw/ S H /;

if ($soft < $need) {
    plan(skip_all => "$need descriptors are needed, $hard allowed")
        if $hard < $need;

    exec('sh', '-c', 'ulimit -n "$1" && exec "$2" "$3"', 'sh', $need, $^X,
         $0) or die "sh: $!";
}

my $t = VLM::Test->new();
my $engine = $t->engine('a');
my @text = (headers => [ 'Accept: text/plain' ]);

# the arena has room for about six of ten uploads

my $upload = 512 * 1024;
my $arena = int($n * $upload * 0.6);
my $output = 32 * 1024;

$t->nginx(conf => <<"EOF_CONF");
%%LOAD%%
%%USER%%
daemon off;
worker_processes 1;
worker_rlimit_nofile $need;
pid %%DIR%%/nginx.pid;
error_log %%DIR%%/error.log error;

events {
    worker_connections $need;
}

http {
    access_log off;
    client_body_temp_path %%DIR%%/body;
    proxy_temp_path %%DIR%%/proxy;
    fastcgi_temp_path %%DIR%%/fastcgi;
    uwsgi_temp_path %%DIR%%/uwsgi;
    scgi_temp_path %%DIR%%/scgi;
    client_body_timeout 300s;
    send_timeout 300s;
    vlm_zone vlm:64k;
    vlm_arena_size $arena;
    vlm_max_request_size 1m;
    vlm_max_image_size 1m;
    vlm_output_buffer_size $output;

    server {
        listen 127.0.0.1:%%PORT%% sndbuf=8k backlog=4096;

        location /v {
            vlm_pass unix:%%DIR%%/a.sock;
        }

        location /status {
            vlm_status;
        }
    }
}
EOF_CONF

my ($worker) = $t->workers();

# private memory of the worker, in bytes

sub private {
    my ($kb) = VLM::Test::slurp("/proc/$worker/status")
               =~ /^RssAnon:\s+(\d+)/m;
    return 1024 * $kb;
}

# the arena's, whoever has touched it

sub shared {
    for my $fd (glob("/proc/$worker/fd/*")) {
        next if (readlink($fd) // '') !~ m!^/memfd:vlm-arena!;
        return (stat($fd))[12] * 512;
    }

    return -1;
}

sub in_flight {
    my $r = $t->exchange(request('/status', '', type => '', method => 'GET',
                                 close => 1));
    my ($value) = $r->{body} =~ /^ngx_vlm_requests_in_flight (\d+)$/m;
    return $value;
}

sub good {
    my ($name) = @_;
    my $r = $t->post('/v', [ prompt => 'good' ], @text);
    is($r->{body}, "roles=user;pictures=0;sha=;prompt=good\n", $name);
}

good('it works');


# slow readers: the engine has said it all, each worker's request holds text

my $before = private();
my $words = int(0.9 * $output / 4000);

sub slow_readers {
    my ($name) = @_;

    my $done = $engine->lines(qr/^done /);
    my @c = map { $t->client(rcvbuf => 2048) } 1 .. $n;

    for my $c (@c) {
        $c->{mute} = 1;
        $c->send(request('/v', form([ prompt => "!flood $words 4000" ])));
    }

    ok($engine->wait_lines(qr/^done /, $done + $n, 120),
       "$name: the engine is done with all");
    is(in_flight(), $n, "$name: their requests are not");

    return @c;
}

my @readers = slow_readers("$n slow readers");
good('slow readers: others are served');

# a buffer with what waits, the same once more on its way out, the request

my $peak = private();
my $each = ($peak - $before) / $n;
diag(sprintf('%d bytes for a slow reader', $each));
cmp_ok($each, '<', 2 * $output + 32 * 1024, 'slow readers: memory is bounded')
    if !$t->sanitized();

# idle uploaders beside them

my $bytes = request('/v', form([ image => file('a', 'x' x $upload),
                                 prompt => 'x' ]), @text);
my $most = 0;
my @uploaders;

for (1 .. $n) {
    my $c = $t->client();
    $c->{mute} = 1;
    $c->send(substr($bytes, 0, length($bytes) - 100));
    push @uploaders, $c;

    my $now = shared();
    $most = $now if $now > $most;
}

good('idle uploaders: others are served');
$most = shared() if shared() > $most;
cmp_ok($most, '<=', $arena, 'idle uploaders: not more than the arena');
cmp_ok($most, '>=', $arena / 2, 'but it is used');

# who had no room was told so, the others are still waited for

my %status = (waiting => 0);

for my $c (@uploaders) {
    $c->fill(0);
    $c->{mute} = 0;
    my ($status) = $c->{buf} =~ m!^HTTP/1\.1 (\d+)!;
    $status{$status // 'waiting'}++;
}

diag(join(', ', map { "$_: $status{$_}" } sort keys %status));
is_deeply([ grep { !/^(?:waiting|503|408)$/ } keys %status ], [],
          'idle uploaders: wait, have given way, or were refused');
cmp_ok($status{waiting}, '>', 0, 'idle uploaders: some wait');

# a newcomer as large as they are takes the room of the one silent longest

ok(wait_for(sub { $t->exchange($bytes)->{status} == 200 }, 60),
   'idle uploaders: a newcomer gets in');

# one that waited goes on

my ($last) = grep { $_->{buf} eq '' } reverse @uploaders;
$last->send(substr($bytes, -100));
my $r = $last->read_answer();
ok($r->{status} == 200 || $r->{status} == 408,
   "one that was idle goes on, or has lost its room: $r->{status}");

# slow readers get everything in the end

my $whole = 0;

for my $c (@readers) {
    my $head = $c->read_head();
    my $text = 0;

    while (1) {
        my $event = $c->next_event($head, 60);
        last if !defined $event->{data};
        $text += length($1) if $event->{data} =~ /"content":"([^"]*)"/;
        $whole++ if $event->{data} eq '[DONE]' && $text == $words * 4000;
    }

    $c->close();
}

is($whole, $n, 'slow readers: each has its whole answer');

$_->close() for @uploaders;
ok(wait_for(sub { in_flight() == 0 }), 'all have left');
ok(wait_for(sub { shared() < 100_000 }), 'the arena is given back');

# as many again find the memory that the first ones had

@readers = slow_readers('again');
cmp_ok(private(), '<', $peak + $n * $output / 4, 'again: no more memory')
    if !$t->sanitized();
$_->reset() for @readers;
ok(wait_for(sub { in_flight() == 0 }), 'all have left again');
good('and service goes on');
is($t->stop('QUIT'), 0, 'nginx quits');


# idle uploads as large as may be, with the sizes that are the defaults

unlink("$t->{dir}/nginx.pid");
$t->configure();
my $conf = VLM::Test::slurp("$t->{dir}/nginx.conf");
$conf =~ s/^ +vlm_\w+ .*;\n//mg;
$conf =~ s!^ +listen .*;$!$&
        location /v { vlm_pass unix:$engine->{socket}; }!m;
$t->nginx(conf => $conf);
($worker) = $t->workers();

my $size = 32 * 1024 * 1024;
my $picture = form([ image => file('a', 'x' x 100_000) ]);
my @idle;

for (1 .. 40) {
    my $c = $t->client();
    $c->{mute} = 1;
    $c->send(request('/v', substr($picture, 0, 50_000), length => $size));
    push @idle, $c;
}

good('40 idle uploads: a question');
ok(wait_for(sub {
       $t->post('/v', [ image => file('a', 'x' x 3_000_000) ])->{status}
           == 200
   }, 60), '40 idle uploads: a newcomer with a picture');
cmp_ok(shared(), '<', 40 * 200_000, '40 idle uploads: room is not memory');

$_->close() for @idle;
ok(wait_for(sub { shared() < 100_000 }), 'the arena is given back');
good('and service goes on');

$t->done();
