#!/usr/bin/perl

# The engine with the CUDA sources: on the host's shim, and on a machine
# without a GPU.

use warnings;
use strict;

use Test::More;

my $engine = 'build/vlm-engine';

plan(skip_all => "no $engine") unless -x $engine;

my @ask = ('run', '--model', 'models/demo', '--image',
    'models/samples/scene1.jpg', '--prompt', 'What color is the square?');

sub run_engine {
    my @args = map { "'$_'" } @_;
    my $out = `$engine @args 2>&1`;

    return ($? >> 8, $out);
}

my ($rc, $cpu) = run_engine(@ask, '--device', 'cpu');
is($rc, 0, 'on the CPU');

for my $dtype (qw/ f32 bf16 /) {
    local $ENV{VLM_CUDA_DTYPE} = $dtype;

    for my $seed (1, 2) {
        local $ENV{VLM_EMU_SEED} = $seed;

        ($rc, my $emu) = run_engine(@ask, '--device', 'emu',
            '--deterministic');
        is($rc, 0, "on the shim, $dtype, seed $seed");
        is($emu, $cpu, 'the same answer');
    }
}

{
    local $ENV{VLM_CUDA_GRAPHS} = 0;

    ($rc, my $emu) = run_engine(@ask, '--device', 'emu');
    is($rc, 0, 'without graphs');
    is($emu, $cpu, 'the same answer');
}

# bytes in place of weights: the CPU's answer; a kind that the device lacks

my @int8 = ('--quantization', 'int8', '--vision-quantization', 'int8');
my @fp8 = ('--device', 'emu', '--vision-quantization', 'fp8');

($rc, my $bytes) = run_engine(@ask, '--device', 'cpu', @int8);
is($rc, 0, 'int8 on the CPU');
($rc, my $emu) = run_engine(@ask, '--device', 'emu', @int8);
is($rc, 0, 'int8 on the shim');
is($emu, $bytes, 'the same answer');

($rc, $emu) = run_engine(@ask, @fp8);
is($rc, 0, 'a tower of fp8');
is($emu, $cpu, 'the answer as without');

{
    local $ENV{VLM_EMU_CAPABILITY} = 80;

    ($rc, $emu) = run_engine(@ask, @fp8);
    is($rc, 1, 'fp8 on an older device');
    like($emu, qr/fp8: emu has compute capability 8\.0, /,
        'it says why');
}

my $needed = `readelf -d $engine`;
like($needed, qr/NEEDED.*libc\.so/, 'what the binary needs to start');
unlike($needed, qr/NEEDED.*(?:cuda|cublas|stdc\+\+)/, 'nothing of CUDA');

SKIP: {
    skip('there is a GPU', 4) if -e '/dev/nvidia0';

    ($rc, my $log) = run_engine(@ask, '--log-level', 'info');
    is($rc, 0, 'auto');
    is(() = $log =~ /computing on the CPU: ./g, 1, 'says once why not CUDA');
    like($log, qr/^\Q$cpu\E/m, 'and answers');

    ($rc, $log) = run_engine(@ask, '--device', 'cuda:1');
    is($rc, 1, "cuda:1: $log");
}

done_testing();
