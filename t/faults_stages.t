#!/usr/bin/perl

# The engine or a worker is killed or stopped while it has requests at every
# stage, with the fake engine; t/faults_engine.t does it with the real one.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use VLM::Stages;
use Test::More;

my $t = VLM::Test->new();
my $engine;

my $stages = VLM::Stages->new($t,
    name => 'fake engine',
    timeout => 3,
    start => sub { $engine ? $engine->start() : ($engine = $t->engine('a')) },
    pid => sub { $engine->{pid} },
    signal => sub { $_[0] eq 'KILL' ? $engine->kill_now()
                                    : $engine->signal($_[0]) },
    ask => {
        receiving => [ prompt => 'good' ],
        queued => [ prompt => '!queued 6000' ],
        encoding => [ prompt => '!progress' ],
        streaming => [ prompt => '!slow 1000 20' ],
        neighbour => [ prompt => '!slow 100 20' ],
    },
    short => {
        encoding => [ prompt => '!silent' ],
        streaming => [ prompt => '!slow 50 40' ],
    },
);

$stages->run();

$t->done();
