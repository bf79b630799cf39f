#!/usr/bin/perl

# The engine or a worker is killed or stopped while it has requests at every
# stage: t/faults_stages.t with the real engine.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use VLM::Stages;
use Test::More;

my $build = $ENV{VLM_BUILD} // 'build';

if (!-x "$build/vlm-engine") {
    plan(skip_all => "no $build/vlm-engine");
}

my $t = VLM::Test->new();
my $pid;

# never an end of its own accord; on the scalar kernels, so that it takes time

my @long = (prompt => 'Hello', temperature => '1.5', seed => 1,
            logit_bias => '{"526":-100,"528":-100}');

sub start {
    local $ENV{VLM_CPU} = 'scalar';
    $pid = spawn("$t->{dir}/engine.log", "$build/vlm-engine",
        '--model', 'models/demo', '--socket', "$t->{dir}/a.sock",
        '--max-num-seqs', 2, '--prefix-cache', 'off');
}

my $stages = VLM::Stages->new($t,
    name => 'real engine',
    timeout => 8,
    start => \&start,
    pid => sub { $pid },
    signal => sub {
        kill($_[0], $pid);
        reap($pid, 20) if $_[0] eq 'KILL';
    },
    ask => {
        receiving => [ prompt => 'good', max_tokens => 2 ],
        queued => [ prompt => 'hi', max_tokens => 2 ],
        encoding => [ prompt => 'hi', max_tokens => 2 ],
        streaming => [ @long, max_tokens => 1900 ],
        neighbour => [ @long, max_tokens => 300 ],
    },
);

$stages->run();

kill('TERM', $pid);
is(reap($pid, 60), 0, 'SIGTERM ends the engine');

$t->done();
