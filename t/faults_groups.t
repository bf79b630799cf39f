#!/usr/bin/perl

# One engine of a group is killed or stopped while both have a request at every
# stage: those of the other one are unhurt, what was not yet submitted goes to
# it, nothing leaks.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;

my $t = VLM::Test->new();
my %engines = map { $_ => $t->engine($_) } qw/ a b /;
my $picture = file('a.jpg', 'x' x 300_000);
my @stages = qw/ receiving queued encoding streaming /;

$t->nginx(http => <<'EOF_HTTP', locations => <<'EOF_CONF');
vlm_zone vlm:64k;
vlm_max_requests 16;
vlm_max_tokens 100000;
vlm_connect_timeout 20s;
vlm_read_timeout 6s;

vlm_engine g {
    server unix:%%DIR%%/a.sock fail_timeout=60s;
    server unix:%%DIR%%/b.sock fail_timeout=60s;
}
EOF_HTTP
location /v {
    vlm_pass g;
}

location /status {
    vlm_status;
}
EOF_CONF

my ($worker) = $t->workers();


sub submit {
    my ($prompt) = @_;

    my $c = $t->client();
    $c->send(request('/v', form([ image => $picture, prompt => $prompt ]),
                     close => 1));
    return $c;
}

sub good { $t->post('/v', [ prompt => 'good' ])->{status} == 200 }

sub in_flight {
    my $r = $t->exchange(request('/status', '', type => '', method => 'GET',
                                 close => 1));
    return $r->{body} =~ /^ngx_vlm_requests_in_flight (\d+)$/m ? $1 : -1;
}

# a worker that knows nothing of what has happened

sub reload {
    ok($t->reload(), 'a new worker');
    ($worker) = $t->workers();
}

# both are connected and take requests in turn

sub balanced {
    return wait_for(sub {
        my %before = map { $_ => scalar $engines{$_}->lines(qr/^request /) }
                         keys %engines;
        good() for 1 .. 4;
        return 2 == grep {
            $engines{$_}->lines(qr/^request /) == $before{$_} + 2
        } keys %engines;
    });
}

sub descriptors { scalar(() = glob("/proc/$worker/fd/*")) }

sub arena {
    my ($fd) = grep { (readlink($_) // '') =~ m!^/memfd:vlm-arena! }
               glob("/proc/$worker/fd/*");
    return (stat($fd))[12] * 512;
}


# the two of a stage: each goes to the engine that has fewer; { engine => c }

sub pair {
    my ($name, $prompt) = @_;

    my %c;

    for my $n (1, 2) {
        my $c = submit("$prompt $name$n");

        wait_for(sub {
            my ($e) = grep {
                $engines{$_}->lines(qr/^request .*prompt="[^"]* $name$n"/)
            } keys %engines;
            $c{$e} = $c if $e;
            return $e;
        }) or die "no $name$n at an engine";
    }

    is(join(' ', sort keys %c), 'a b', "$name: one on each");
    return \%c;
}

sub set_stages {
    my ($name) = @_;

    my %c = (
        streaming => pair("${name}s", '!slow 5000 20'),
        encoding => pair("${name}e", '!progress'),
        queued => pair("${name}q", '!queued 100000'),
    );

    my $bytes = request('/v', form([ image => $picture, prompt => 'good' ]),
                        close => 1);

    $c{receiving} = [ map {
        my $c = $t->client();
        $c->send(substr($bytes, 0, 100_000));
        $c;
    } 1, 2 ];

    $c{rest} = substr($bytes, 100_000);
    ok(wait_for(sub { in_flight() == 8 }), "$name: eight requests");

    return \%c;
}

sub ends {
    my ($name, $c) = @_;

    # they would have lasted longer than any machine needs to get here

    $engines{b}->signal('HUP');

    like($c->{queued}{b}->read_answer()->{body}, qr/\[DONE\]/,
         "$name: what was queued at the other is answered");
    ok(defined $c->{streaming}{b}->closed(), "$name: its stream ends");
    like($c->{streaming}{b}{buf}, qr/t4999.*\[DONE\]/s, "$name: whole");
    ok(!defined $c->{encoding}{b}->closed(0.1),
       "$name: what it encodes goes on");
    is(scalar $engines{b}->lines(qr/^cancel /), 0, "$name: none was cancelled");
}

sub fails {
    my ($name, $c, $status, $code) = @_;

    for my $stage (qw/ queued encoding /) {
        my $r = $c->{$stage}{a}->read_answer();
        is($r->{status}, $status, "$name, $stage: status");
        is(json($r->{body})->{error}{code}, $code, "$name, $stage: code");
    }

    ok(defined $c->{streaming}{a}->closed(), "$name, streaming: ends");
    like($c->{streaming}{a}{buf}, qr/data: \{"error":[^\n]*"$code"/,
         "$name, streaming: an error");
    unlike($c->{streaming}{a}{buf}, qr/\[DONE\]/, "$name: no [DONE]");
}

sub uploads {
    my ($name, $c) = @_;

    my $before = $engines{b}->lines(qr/^request .*prompt="good"/);

    $_->send($c->{rest}) for @{$c->{receiving}};
    is(join(' ', map { $_->read_answer()->{status} } @{$c->{receiving}}),
       '200 200', "$name: uploads go on");
    is($engines{b}->lines(qr/^request .*prompt="good"/), $before + 2,
       "$name: both to the other one");

    is(scalar(grep { good() } 1 .. 4), 4, "$name: so do new requests");
}

sub recovered {
    my ($name, $c, $fds) = @_;

    $_->close() for @{$c->{receiving}},
                    map { values %{$c->{$_}} } qw/ queued encoding streaming /;

    ok(wait_for(sub { in_flight() == 0 }), "$name: no request is left");
    ok(wait_for(sub { arena() < 200_000 }), "$name: nor in the arena")
        or diag(arena());
    ok(wait_for(sub { descriptors() <= $fds }), "$name: nor a descriptor")
        or diag("$fds, " . descriptors());
}


ok(balanced(), 'two engines');
my $fds = descriptors();

# killed

my $c = set_stages('killed');
$engines{a}->kill_now();
fails('killed', $c, 502, 'engine_died');
uploads('killed', $c);
ends('killed', $c);
recovered('killed', $c, $fds);

# it comes back, both with new logs

$engines{a}->start();
reload();
ok(balanced(), 'both serve again');
$fds = descriptors();
unlink("$t->{dir}/b.log");
$engines{b}->stop();
$engines{b}->start();
reload();
ok(balanced(), 'both serve');

# stopped

$c = set_stages('stopped');
$engines{a}->signal('STOP');
fails('stopped', $c, 504, 'engine_timeout');
uploads('stopped', $c);
ends('stopped', $c);
$engines{a}->signal('CONT');
recovered('stopped', $c, $fds);

# all slots of both

reload();
ok(balanced(), 'both serve again');

my @all = map { submit('good') } 1 .. 16;
is(scalar(grep { $_->read_answer()->{status} == 200 } @all), 16,
   'every slot');

$t->done();
