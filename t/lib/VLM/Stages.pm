package VLM::Stages;

# Requests at every stage (receiving, queued, encoding, streaming) for tests in
# which the engine or a worker is killed or stopped, and the account afterwards:
# every client gets an end, the other worker is unhurt, nothing leaks, service
# returns by itself.
#
# An engine of either kind is told by name, start, pid, signal, ask (fields of a
# form for each stage, and of a neighbour on the other worker) and short (of
# these, what ends by itself when a stopped worker goes on), timeout in seconds.

use warnings;
use strict;

use VLM::Test;
use Test::More;
use Time::HiRes qw/ sleep /;

our @STAGES = qw/ receiving queued encoding streaming /;

my $LARGE = VLM::Test::slurp('t/data/images/e_large_1280x960.jpg');
my @TEXT = (headers => [ 'Accept: text/plain' ]);

# all end by themselves in less than the client waits

my %CONF = (workers => 2, http => <<'EOF_HTTP', locations => <<'EOF_CONF');
vlm_zone vlm:64k;
vlm_arena_size 32m;
vlm_max_requests 8;
vlm_max_tokens 100000;
vlm_read_timeout %%TIMEOUT%%s;
vlm_connect_timeout 1s;
vlm_queue_timeout %%TIMEOUT%%s;
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


# starts the engine and nginx

sub new {
    my ($class, $t, %engine) = @_;

    my $self = bless { t => $t, short => {}, pictures => 0, %engine }, $class;
    my $http = $CONF{http} =~ s/%%TIMEOUT%%/$self->{timeout}/gr;

    $self->{start}->();
    $t->nginx(%CONF, http => $http);
    ok(wait_for(sub { $self->good() }, 60), "$self->{name}: serves");

    return $self;
}


sub good {
    my ($self) = @_;

    my $r = $self->{t}->post('/patient', [ prompt => 'good', max_tokens => 2 ],
                             @TEXT);
    return $r->{status} == 200;
}


sub metric {
    my ($self, $name) = @_;

    my $r = $self->{t}->exchange(request('/status', '', type => '',
                                         method => 'GET', close => 1));
    my ($value) = $r->{body} =~ /^ngx_vlm_\Q$name\E(?:\{[^}]*\})? (\S+)$/m;

    return $value // 0;
}


sub at_engine {
    my ($self) = @_;

    return $self->metric('engine_num_requests_running')
           + $self->metric('engine_num_requests_waiting');
}


sub stopped {
    my ($pid) = @_;
    return VLM::Test::slurp("/proc/$pid/stat") =~ /\) T /;
}


# with only this worker of the two running

sub on_worker {
    my ($self, $pid, $code) = @_;

    my @others = grep { $_ != $pid } $self->{t}->workers();

    kill('STOP', @others);
    wait_for(sub { !grep { !stopped($_) } @others });
    my @result = $code->();
    kill('CONT', @others);

    return @result;
}


sub submit {
    my ($self, $fields, %opt) = @_;

    my $c = $self->{t}->client();
    $c->send(request($opt{uri} // '/v', form([ @{$opt{more} // []},
                                               @$fields ]), close => 1));
    return $c;
}


# new pictures, for which no cache helps: junk behind EOI is ignored

sub encode_pictures {
    my ($self) = @_;
    return map { (image => file('a.jpg', $LARGE . ++$self->{pictures})) }
               1 .. 4;
}


# a request at every stage on a worker, and one on its neighbour

sub set_stage {
    my ($self, %ask) = @_;

    my %c;
    my $t = $self->{t};
    my ($worker, $other) = $t->workers();

    %ask = (%{$self->{ask}}, %ask);

    $self->{worker} = $worker;
    $self->{before} = $self->descriptors();

    $self->on_worker($other, sub {
        $c{neighbour} = $self->submit($ask{neighbour});
        $c{neighbour}->read_until(qr/"content":/) // die 'no neighbour';
    });

    $self->on_worker($worker, sub {
        $c{streaming} = $self->submit($ask{streaming});
        $c{streaming}->read_until(qr/"content":/) // die 'no stream';

        my $bytes = request('/v', form([ image => file('a.jpg', $LARGE),
                                         @{$ask{receiving}} ]), close => 1);
        $c{receiving} = $t->client();
        $c{receiving}->send(substr($bytes, 0, 100_000, ''));
        $c{rest} = $bytes;

        $c{encoding} = $self->submit($ask{encoding},
                                     more => [ $self->encode_pictures() ]);
        $c{queued} = $self->submit($ask{queued});

        wait_for(sub { $self->metric('requests_in_flight') >= 5
                       && $self->at_engine() >= 3 })
            or diag('not at every stage');
    });

    return \%c;
}


# descriptors by process; each worker has a connection to the engine

sub descriptors {
    my ($self) = @_;

    my @workers = $self->{t}->workers();
    my %fds;

    for my $worker (@workers) {
        $self->on_worker($worker, sub { wait_for(sub { $self->good() }) });
    }

    for my $pid ($self->{pid}->(), @workers) {
        $fds{$pid} = () = glob("/proc/$pid/fd/*");
    }

    return \%fds;
}


# memory of the workers' arenas, in bytes

sub arenas {
    my ($self) = @_;

    my $n = 0;

    for my $fd (map { glob("/proc/$_/fd/*") } $self->{t}->workers()) {
        next if (readlink($fd) // '') !~ m!^/memfd:vlm-arena!;
        $n += (stat($fd))[12] * 512;
    }

    return $n;
}


# everything is as it was, once the clients have gone

sub recovered {
    my ($self, $name, $clients) = @_;

    $clients->{$_}->close() for @STAGES, 'neighbour';

    ok(wait_for(sub { $self->good() }, 30),
       "$name: service returns by itself");
    ok(wait_for(sub { $self->metric('requests_in_flight') == 0 }),
       "$name: no request is left in a worker");
    ok(wait_for(sub { $self->metric('engine_up')
                      && $self->at_engine() == 0 }),
       "$name: nor in the engine");
    ok(wait_for(sub { $self->arenas() < 400_000 }), "$name: nor in an arena")
        or diag($self->arenas());

    my ($before, %more) = $self->{before};

    ok(wait_for(sub {
           my $after = $self->descriptors();
           %more = map { ($_ => "$before->{$_}, $after->{$_}") }
                   grep { defined $before->{$_}
                          && $after->{$_} > $before->{$_} } keys %$after;
           return !%more;
       }), "$name: nor a descriptor") or diag(explain(\%more));

    # all slots can be used, once the engine has acknowledged their last end

    my ($worker) = $self->{t}->workers();
    my @status;

    $self->on_worker($worker, sub {
        wait_for(sub {
            my @c = map { $self->submit([ prompt => 'good', max_tokens => 2 ],
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


# the faults, one after the other

sub run {
    my ($self) = @_;

    $self->engine_killed("$self->{name} killed");
    $self->engine_stopped("$self->{name} stopped");
    $self->worker_killed("$self->{name}, worker killed");
    $self->worker_stopped("$self->{name}, worker stopped");
}


sub engine_killed {
    my ($self, $name) = @_;

    my $c = $self->set_stage();

    $self->{signal}->('KILL');

    failed($c->{$_}, $_, $name, 502)
        for qw/ queued encoding streaming neighbour /;

    $self->{start}->();
    ok(wait_for(sub { $self->good() }), "$name: it is back");

    $c->{receiving}->send($c->{rest});
    is($c->{receiving}->read_answer()->{status}, 200,
       "$name: the upload went on, and is answered by the new engine");

    $self->recovered($name, $c);
}


sub engine_stopped {
    my ($self, $name) = @_;

    my $c = $self->set_stage();

    $self->{signal}->('STOP');
    $c->{receiving}->send($c->{rest});

    failed($c->{$_}, $_, $name, 504, 503, 502) for @STAGES, 'neighbour';

    $self->{signal}->('CONT');
    $self->recovered($name, $c);
}


# its clients are cut, the other's not

sub worker_killed {
    my ($self, $name) = @_;

    my $c = $self->set_stage();
    my $worker = $self->{worker};

    $self->{t}->expect_errors(qr/worker process $worker exited on signal 9/);
    kill('KILL', $worker);

    for my $stage (@STAGES) {
        ok(defined $c->{$stage}->closed(), "$name, $stage: cut");
        unlike($c->{$stage}{buf}, qr/\[DONE\]/, "$name, $stage: no [DONE]");
    }

    like(stream_end($c->{neighbour}), qr/\[DONE\]/,
         "$name: a stream of the other worker");
    ok(wait_for(sub { $self->{t}->workers() == 2 }), "$name: a new worker");
    $self->recovered($name, $c);
}


sub worker_stopped {
    my ($self, $name) = @_;

    my $c = $self->set_stage(%{$self->{short}});
    my $worker = $self->{worker};

    kill('STOP', $worker);
    ok(wait_for(sub { stopped($worker) }), "$name: it stands still");

    like(stream_end($c->{neighbour}), qr/\[DONE\]/,
         "$name: a stream of the other worker");
    ok(wait_for(sub { $self->good() }), "$name: the other worker serves");
    sleep($self->{timeout} + 0.5);
    ok($self->good(), "$name: longer than any timeout");

    kill('CONT', $worker);
    $c->{receiving}->send($c->{rest});

    for my $stage (@STAGES) {
        ok(defined $c->{$stage}->closed(60), "$name, $stage: ends");
        isnt($c->{$stage}{buf}, '', "$name, $stage: with an answer");
    }

    $self->recovered($name, $c);
}


1;
