#!/usr/bin/perl

# What ptxas said of the CUDA kernels: nothing is spilled, and registers stay
# within budgets, so that enough blocks fit on a multiprocessor.

use warnings;
use strict;

use Test::More;

# registers of a kernel; 65536 / (threads * budget) blocks run at once

my $default = 64;               # 4 blocks of 256 threads

my %budget = (
    # two blocks of 128 threads, which is what shared memory allows too
    prefill_kernel          => 255,
    vision_kernel           => 255,
    prefill_matrix_kernel   => 255,
    vision_matrix_kernel    => 255,

    # packs of a weight or of keys stay in registers until they are used
    decode_kernel   => 128,
    gemv_kernel     => 128,
);

my @logs = glob('build-cuda/kernels/cuda/*.log');

plan(skip_all => 'built without nvcc') if @logs == 0;

my (%registers, %spills, %archs);
my $kernel;

for my $log (@logs) {
    open my $fh, '<', $log or die "$log: $!";

    while (<$fh>) {
        if (/Compiling entry function '(\w+)' for '(\w+)'/) {
            my ($mangled, $arch) = ($1, $2);

            ($kernel) = $mangled =~ /_ns\d+?([a-z]\w*?_kernel)/;
            $kernel //= $mangled;
            $archs{$arch} = 1;
            $registers{$kernel} //= 0;
            $spills{$kernel} //= 0;

        } elsif (defined $kernel
            && /(\d+) bytes spill stores, (\d+) bytes spill loads/)
        {
            $spills{$kernel} += $1 + $2;

        } elsif (defined $kernel && /Used (\d+) registers/) {
            $registers{$kernel} = $1 if $1 > $registers{$kernel};
        }
    }

    close $fh;
}

is(join(' ', sort keys %archs), 'sm_80 sm_89 sm_90', 'architectures');

for my $name (sort keys %registers) {
    my $most = $budget{$name} // $default;

    is($spills{$name}, 0, "$name: no spills");
    ok($registers{$name} > 0 && $registers{$name} <= $most,
        "$name: $registers{$name} of $most registers");
}

for my $name (keys %budget) {
    ok(exists $registers{$name}, "$name: there is such a kernel");
}

done_testing();
