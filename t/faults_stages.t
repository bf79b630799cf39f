#!/usr/bin/perl

# The engine or a worker is killed or stopped while it has requests at every
# stage: receiving, queued, encoding, streaming.  With the fake engine and with
# the real one: every client gets an end, the other worker is unhurt, nothing
# leaks, service returns by itself.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;
use Time::HiRes qw/ sleep /;

my $build = $ENV{VLM_BUILD} // 'build';
my $t = VLM::Test->new();
my @text = (headers => [ 'Accept: text/plain' ]);
my @stages = qw/ receiving queued encoding streaming /;
my $large = VLM::Test::slurp('t/data/images/e_large_1280x960.jpg');
my $pictures = 0;
my ($fake, $real_pid);

# all end by themselves in less than the client waits

my %conf = (workers => 2, http => <<'EOF_HTTP', locations => <<'EOF_CONF');
vlm_zone vlm:64k;
vlm_arena_size 32m;
vlm_max_requests 8;
vlm_max_tokens 100000;
vlm_read_timeout 3s;
vlm_connect_timeout 1s;
vlm_queue_timeout 3s;
EOF_HTTP
location /v {
    vlm_pass unix:%%DIR%%/a.sock;
}

location /patient {
    vlm_pass unix:%%DIR%%/a.sock;
    vlm_read_timeout 60s;
    vlm_queue_timeout 60s;
}

location /status {
    vlm_status;
}
EOF_CONF


# the engine, of either kind

my %fake = (
    name => 'fake',
    start => sub { $fake ? $fake->start() : ($fake = $t->engine('a')) },
    pid => sub { $fake->{pid} },
    signal => sub { $_[0] eq 'KILL' ? $fake->kill_now()
                                    : $fake->signal($_[0]) },
    stop => sub { $fake->stop() },
    ask => {
        receiving => [ prompt => 'good' ],
        queued => [ prompt => '!queued 20000' ],
        encoding => [ prompt => '!progress' ],
        streaming => [ prompt => '!slow 1000 20' ],
        neighbour => [ prompt => '!slow 100 20' ],
    },
    # those that end by themselves when their worker goes on, or are overdue
    short => {
        encoding => [ prompt => '!silent' ],
        streaming => [ prompt => '!slow 50 40' ],
    },
);

# never an end of its own accord; on the scalar kernels, so that it takes time

my @long = (prompt => 'Hello', temperature => '1.5', seed => 1,
            logit_bias => '{"526":-100,"528":-100}');

my %real = (
    name => 'real',
    start => sub {
        local $ENV{VLM_CPU} = 'scalar';
        $real_pid = spawn("$t->{dir}/engine.log", "$build/vlm-engine",
            '--model', 'models/demo', '--socket', "$t->{dir}/a.sock",
            '--max-num-seqs', 2, '--prefix-cache', 'off');
    },
    pid => sub { $real_pid },
    signal => sub {
        kill($_[0], $real_pid);
        reap($real_pid, 20) if $_[0] eq 'KILL';
    },
    stop => sub { kill('TERM', $real_pid); reap($real_pid, 60) },
    ask => {
        receiving => [ prompt => 'good', max_tokens => 2 ],
        queued => [ prompt => 'hi', max_tokens => 2 ],
        encoding => [ prompt => 'hi', max_tokens => 2 ],
        streaming => [ @long, max_tokens => 1900 ],
        neighbour => [ @long, max_tokens => 300 ],
    },
    short => {},
);


sub good {
    my $r = $t->post('/patient', [ prompt => 'good', max_tokens => 2 ], @text);
    return $r->{status} == 200;
}

sub metric {
    my ($name) = @_;

    my $r = $t->exchange(request('/status', '', type => '', method => 'GET',
                                 close => 1));
    my ($value) = $r->{body} =~ /^ngx_vlm_\Q$name\E(?:\{[^}]*\})? (\S+)$/m;

    return $value // 0;
}

sub at_engine {
    return metric('engine_num_requests_running')
           + metric('engine_num_requests_waiting');
}

sub stopped {
    my ($pid) = @_;
    return VLM::Test::slurp("/proc/$pid/stat") =~ /\) T /;
}


# with only this worker of the two running

sub on_worker {
    my ($pid, $code) = @_;

    my @others = grep { $_ != $pid } $t->workers();

    kill('STOP', @others);
    wait_for(sub { !grep { !stopped($_) } @others });
    my @result = $code->();
    kill('CONT', @others);

    return @result;
}


sub submit {
    my ($fields, %opt) = @_;

    my $c = $t->client();
    $c->send(request($opt{uri} // '/v', form([ @{$opt{more} // []},
                                               @$fields ]), close => 1));
    return $c;
}


# new pictures, for which no cache helps: junk behind EOI is ignored

sub encode_pictures {
    return map { (image => file('a.jpg', $large . ++$pictures)) } 1 .. 4;
}


# a request at every stage on a worker, and one on its neighbour

sub set_stage {
    my ($engine, $worker, $other, %ask) = @_;

    my %c;

    on_worker($other, sub {
        $c{neighbour} = submit($ask{neighbour});
        $c{neighbour}->read_until(qr/"content":/) // die 'no neighbour';
    }) if $other;

    on_worker($worker, sub {
        $c{streaming} = submit($ask{streaming});
        $c{streaming}->read_until(qr/"content":/) // die 'no stream';

        my $bytes = request('/v', form([ image => file('a.jpg', $large),
                                         @{$ask{receiving}} ]), close => 1);
        $c{receiving} = $t->client();
        $c{receiving}->send(substr($bytes, 0, 100_000, ''));
        $c{rest} = $bytes;

        $c{encoding} = submit($ask{encoding},
                               more => [ encode_pictures() ]);
        $c{queued} = submit($ask{queued});

        my $all = $other ? 5 : 4;
        wait_for(sub { metric('requests_in_flight') >= $all
                       && at_engine() >= $all - 2 })
            or diag('not at every stage');
    });

    return \%c;
}


# descriptors by process; each worker has a connection to the engine

sub descriptors {
    my ($engine) = @_;

    for my $worker ($t->workers()) {
        on_worker($worker, sub { wait_for(\&good, 20) });
    }

    my %fds;

    for my $pid ($engine->{pid}->(), $t->workers()) {
        $fds{$pid} = () = glob("/proc/$pid/fd/*");
    }

    return \%fds;
}


# memory of the workers' arenas, in bytes

sub arenas {
    my $n = 0;

    for my $fd (map { glob("/proc/$_/fd/*") } $t->workers()) {
        next if (readlink($fd) // '') !~ m!^/memfd:vlm-arena!;
        $n += (stat($fd))[12] * 512;
    }

    return $n;
}


# everything is as it was

sub recovered {
    my ($engine, $name, $before) = @_;

    ok(wait_for(\&good, 30), "$name: service returns by itself");
    ok(wait_for(sub { metric('requests_in_flight') == 0 }),
       "$name: no request is left in a worker");
    ok(wait_for(sub { metric('engine_up') && at_engine() == 0 }),
       "$name: nor in the engine");
    ok(wait_for(sub { arenas() < 400_000 }), "$name: nor in an arena")
        or diag(arenas());

    my %more;

    ok(wait_for(sub {
           my $after = descriptors($engine);
           %more = map { ($_ => "$before->{$_}, $after->{$_}") }
                   grep { defined $before->{$_}
                          && $after->{$_} > $before->{$_} } keys %$after;
           return !%more;
       }), "$name: nor a descriptor") or diag(explain(\%more));

    # all slots can be used, once the engine has acknowledged their last end

    my ($worker) = $t->workers();
    my @status;

    on_worker($worker, sub {
        wait_for(sub {
            my @c = map { submit([ prompt => 'good', max_tokens => 2 ],
                                 uri => '/patient') } 1 .. 8;
            @status = map { $_->read_answer()->{status} } @c;
            return !grep { $_ != 200 } @status;
        });
    });

    is("@status", join(' ', (200) x 8), "$name: nor a slot");
}


# the rest of a stream after its first tokens, whose chunks were not counted

sub stream_end {
    my ($c) = @_;

    ok(defined $c->closed(), 'it ends');
    return $c->{buf};
}


sub failed {
    my ($c, $stage, $name, @status) = @_;

    if ($stage eq 'streaming' || $stage eq 'neighbour') {
        my $rest = stream_end($c);
        like($rest, qr/data: \{"error":/, "$name, $stage: an error");
        unlike($rest, qr/\[DONE\]/, "$name, $stage: no [DONE]");
        return;
    }

    my $r = $c->read_answer();
    my ($found) = grep { $_ == $r->{status} } @status;

    is($r->{status}, $found // $status[0], "$name, $stage: status");
    isnt(json($r->{body} // '')->{error}{code} // '', '',
         "$name, $stage: an error in JSON");
}


sub engine_killed {
    my ($engine, $name) = @_;

    my ($worker, $other) = $t->workers();
    my $before = descriptors($engine);
    my $c = set_stage($engine, $worker, $other, %{$engine->{ask}});

    $engine->{signal}->('KILL');

    failed($c->{$_}, $_, $name, 502)
        for qw/ queued encoding streaming neighbour /;

    $engine->{start}->();
    ok(wait_for(\&good), "$name: it is back");

    $c->{receiving}->send($c->{rest});
    is($c->{receiving}->read_answer()->{status}, 200,
       "$name: the upload went on, and is answered by the new engine");

    recovered($engine, $name, $before);
}


sub engine_stopped {
    my ($engine, $name) = @_;

    my ($worker, $other) = $t->workers();
    my $before = descriptors($engine);
    my $c = set_stage($engine, $worker, $other, %{$engine->{ask}});

    $engine->{signal}->('STOP');
    $c->{receiving}->send($c->{rest});

    failed($c->{$_}, $_, $name, 504, 503, 502) for @stages, 'neighbour';

    $engine->{signal}->('CONT');
    recovered($engine, $name, $before);
}


# its clients are cut, the other's not

sub worker_killed {
    my ($engine, $name) = @_;

    my ($worker, $other) = $t->workers();
    my $before = descriptors($engine);
    my $c = set_stage($engine, $worker, $other, %{$engine->{ask}});

    $t->expect_errors(qr/worker process $worker exited on signal 9/);
    kill('KILL', $worker);

    for my $stage (@stages) {
        ok(defined $c->{$stage}->closed(), "$name, $stage: cut");
        unlike($c->{$stage}{buf}, qr/\[DONE\]/, "$name, $stage: no [DONE]");
    }

    like(stream_end($c->{neighbour}), qr/\[DONE\]/,
         "$name: a stream of the other worker");
    ok(wait_for(sub { $t->workers() == 2 }), "$name: a new worker");
    recovered($engine, $name, $before);
}


sub worker_stopped {
    my ($engine, $name) = @_;

    my ($worker, $other) = $t->workers();
    my $before = descriptors($engine);
    my $c = set_stage($engine, $worker, $other, %{$engine->{ask}},
                      %{$engine->{short}});

    kill('STOP', $worker);
    ok(wait_for(sub { stopped($worker) }), "$name: it stands still");

    like(stream_end($c->{neighbour}), qr/\[DONE\]/,
         "$name: a stream of the other worker");
    ok(wait_for(\&good), "$name: the other worker serves");
    sleep(3.5);
    ok(good(), "$name: longer than any timeout");

    kill('CONT', $worker);
    $c->{receiving}->send($c->{rest});

    for my $stage (@stages) {
        ok(defined $c->{$stage}->closed(), "$name, $stage: ends");
        isnt($c->{$stage}{buf}, '', "$name, $stage: with an answer");
    }

    recovered($engine, $name, $before);
}


$fake{start}->();
$t->nginx(%conf);

for my $engine (\%fake, \%real) {

    if ($engine == \%real) {
        $fake->stop();

        if (!-x "$build/vlm-engine") {
            diag("no $build/vlm-engine");
            last;
        }

        $engine->{start}->();
    }

    ok(wait_for(\&good, 60), "$engine->{name} engine: serves");

    engine_killed($engine, "$engine->{name} engine killed");
    engine_stopped($engine, "$engine->{name} engine stopped");
    worker_killed($engine, "$engine->{name} engine, worker killed");
    worker_stopped($engine, "$engine->{name} engine, worker stopped");
}

is($real{stop}->(), 0, 'SIGTERM ends the engine') if $real_pid;

$t->done();
