#!/usr/bin/perl

# bench/gpu takes its steps: on the shim, with a test that passes, and where
# there is no GPU.

use warnings;
use strict;

use Test::More;

plan(skip_all => 'no build/bench/bench_gpu')
    unless -x 'build/bench/bench_gpu';
plan(skip_all => 'no build/t/unit/cuda_rows')
    unless -x 'build/t/unit/cuda_rows';

my $out = `bench/gpu --dry cuda_rows 2>&1`;
is($? >> 8, 0, 'dry run');

like($out, qr/^cuda_rows\s+[1-9]\d* passed\s+0 failed$/m, 'a test');
like($out, qr/^emu$/m, 'the device');
like($out, qr/^copy \d+ GB\/s$/m, 'a copy');

for my $line ('tiny decode 1', 'tiny prefill 33', 'tiny tower 2 x 36',
    'decode 8 alone', 'decode 8 beside encoding')
{
    like($out, qr/^\Q$line\E\s+\d+\.\d+ ms/m, $line);
}

# a test that is not there has failed, and the rest is done all the same

$out = `bench/gpu --dry no_such_test 2>&1`;
is($? >> 8, 1, 'a failed test');
like($out, qr/^no_such_test\s+0 passed\s+1 failed$/m, 'is named');
like($out, qr/pictures\/s meanwhile$/m, 'times are measured');

SKIP: {
    skip('there is a GPU', 2) if -e '/dev/nvidia0';

    $out = `bench/gpu 2>&1`;
    is($? >> 8, 1, 'without a GPU');
    like($out, qr/^bench\/gpu: .*(?:no CUDA kernels|no NVIDIA driver)/,
        'says so');
}

done_testing();
