#!/usr/bin/perl

# The command line of vlm-engine: every command on real checkpoints, and what
# it says when something is wrong.

use warnings;
use strict;

use File::Temp qw/ tempdir /;
use IPC::Open3;
use JSON::PP;
use Symbol qw/ gensym /;
use Test::More;

my $build = $ENV{VLM_BUILD} // 'build';
my $engine = "$build/vlm-engine";
my $demo = 'models/demo';
my $dir = tempdir('vlm-engine-XXXXXX', TMPDIR => 1, CLEANUP => 1);

plan(skip_all => "no $engine") unless -x $engine;

# golden pictures come from an archive, as make data does it
system('make', '-s', 'build-data/images_rgb/info.json') == 0
    or plan(skip_all => 'no golden pictures');


# Runs the engine; returns exit status, stdout, stderr.

sub engine {
    my ($in, @args) = @_;

    open(my $err, '+>', "$dir/stderr") or die;
    my $pid = open3(my $to, my $from, '>&' . fileno($err), $engine, @args);

    local $SIG{PIPE} = 'IGNORE';
    print $to $in;
    close($to);

    my $out = do { local $/; <$from> };
    waitpid($pid, 0);
    my $status = $? & 127 ? "signal " . ($? & 127) : $? >> 8;

    seek($err, 0, 0);
    my $errors = do { local $/; <$err> } // '';

    return ($status, $out // '', $errors);
}


sub slurp {
    my ($name) = @_;
    open(my $f, '<:raw', $name) or die "$name: $!";
    local $/;
    return scalar <$f>;
}


sub spew {
    my ($name, $data) = @_;
    open(my $f, '>:raw', $name) or die "$name: $!";
    print $f $data;
    close($f) or die "$name: $!";
    return $name;
}


sub json { return JSON::PP->new->utf8->allow_nonref->decode($_[0]) }


# The one tensor of a file of decoded pixels, as a PPM.

sub ppm {
    my ($picture) = @_;

    my $file = slurp("build-data/images_rgb/$picture.safetensors");
    my $n = unpack('Q<', $file);
    my $head = json(substr($file, 8, $n));
    my ($h, $w) = @{$head->{rgb}{shape}};

    return spew("$dir/$picture.ppm",
                "P6\n$w $h\n255\n" . substr($file, 8 + $n, 3 * $w * $h));
}


# ---- help, version, mistakes ----

my ($rc, $out, $err) = engine('', '--version');
is($rc, 0, 'version: status');
like($out, qr/^vlm-engine \d+\.\d+\.\d+\n\z/, 'version');

for my $command ('', qw/ run info decode pixels tokenize /) {
    ($rc, $out) = engine('', $command eq '' ? () : $command, '--help');
    is($rc, 0, "help $command: status");
    like($out, qr/^usage: vlm-engine/, "help $command");
}

for my $case (
    [[], 2, qr/^vlm-engine: --model is missing\n\z/],
    [['--model', $demo], 2, qr/^vlm-engine: --socket is missing\n\z/],
    [['--nonsense'], 2, qr/^vlm-engine: unknown option "--nonsense"\n\z/],
    [['serve'], 2, qr/^vlm-engine: unknown command "serve"/],
    [['--threads', '0'], 2, qr/--threads 0 is out of range: 1 to 1024/],
    [['--device', 'tpu'], 2, qr/"tpu": must be auto, cpu, cuda, cuda:N or/],
    [['run', '--model', $demo, '--prompt', 'x', '--device', 'cuda:98'], 1,
     qr/^vlm-engine: (?:CUDA: |this build has no CUDA kernels)/m],
    [['--model', 'models/demo', '--check', '--redis', 'rediss://a'], 2,
        qr/--redis: rediss:\/\/ is not supported: this build's hiredis has/],
    [['--model', 'models/demo', '--check', '--redis', 'redis://:pw@a'], 2,
        qr/--redis: a password on the command line can be seen by everybody/],
    [['--model', 'models/demo', '--check', '--redis', 'a'], 2,
        qr/--redis: Redis URL: unknown scheme/],
    [['--model', 'models/demo', '--check', '--redis-password-file', 'x'], 2,
        qr/--redis-password-file without --redis/],
    [['--max-num-seqs', '32', '--max-num-batched-tokens', '16'], 2,
     qr/--max-num-batched-tokens 16 is less than --max-num-seqs 32/],
    [['--model', $demo, '--check', '--device', 'cpu',
      '--vision-quantization', 'fp8'], 1,
     qr/--vision-quantization fp8: the CPU device has no fp8 weights/],
    [['info'], 2, qr/too few arguments, usage: vlm-engine info DIR/],
    [['decode', 'x.png'], 2, qr/--out is missing/],
    [['pixels', $demo, 'x.png'], 2, qr/--out is missing/],
    [['run', '--model', $demo], 2, qr/--prompt is missing/],
    [['run', '--model', $demo, '--prompt', ''], 2, qr/--prompt is missing/],
    [['run', '--prompt', 'x'], 2, qr/--model is missing/],
    [['run', '--model', $demo, '--messages', 'm', '--prompt', 'x'], 2,
     qr/--messages does not go with --prompt/],
    [['run', '--model', "$dir/none", '--prompt', 'x'], 1,
     qr/^vlm-engine: .*none.*No such file/m],
    [['run', '--model', $demo, '--prompt', 'x', '--image', "$dir/none"], 1,
     qr/^vlm-engine: \S*none: No such file or directory\n\z/],
    [['run', '--model', $demo, '--prompt', 'x', '--image', 'Makefile'], 1,
     qr/^vlm-engine: image\[0\]: /m],
    [['run', '--model', $demo, '--prompt', "a\xff"], 1,
     qr/not valid UTF-8/],
    [['run', '--model', $demo, '--prompt', 'x' x 9000], 1,
     qr/maximum context length is 2048 tokens/],
    [['run', '--model', $demo, '--prompt', 'x', '--max-model-len', '4096'],
     1, qr/--max-model-len is 4096, but the model has positions for 2048/],
    [['run', '--model', $demo, '--prompt', 'x', '--kv-cache-memory', '1m',
      '--max-model-len', '2048'], 1,
     qr/KV cache of 1\.0 MiB holds 512 tokens, fewer than --max-model-len/],
    [['--model', $demo, '--check', '--kv-cache-memory', '900000g'], 1,
     qr/not enough memory: the model needs \d+ MiB \(weights \d+, KV cache/],
    [['--model', "$dir/none", '--check'], 1, qr/No such file/],
    [['decode', 'Makefile', '--out', "$dir/x.ppm"], 1,
     qr/^vlm-engine: Makefile: /],
    [['decode', 't/data/images/a_square_224.png', '--out',
      "$dir/none/x.ppm"], 1, qr/none\/x\.ppm: No such file/],
    [['decode', 't/data/images/a_square_224.png', '--out', "$dir/x.ppm",
      '--max-image-pixels', '1000'], 1, qr/1000/],
    [['tokenize', "$dir/none"], 1, qr/No such file/],
) {
    my ($args, $status, $message) = @$case;
    my $name = join(' ', map { substr($_, 0, 40) } @$args);

    ($rc, $out, $err) = engine('', @$args);
    is($rc, $status, "vlm-engine $name: status");
    like($err, $message, "vlm-engine $name: message");
    is($out, '', "vlm-engine $name: nothing on stdout");
}


# ---- output that cannot be written, input that cannot be read ----

for my $args ("info $demo", "tokenize $demo", "run --model $demo --prompt x",
              '--version', '--help')
{
    $out = qx{echo '"x"' | $engine $args 2>&1 >/dev/full};
    is($? >> 8, 1, "vlm-engine $args, a full disk: status");
    like($out, qr/^vlm-engine: stdout: No space left on device$/m,
         "vlm-engine $args, a full disk: message");
}

$out = qx{$engine info $demo 2>&1 >&-};
is($? >> 8, 1, 'info, stdout is closed: status');
like($out, qr/^vlm-engine: stdout: Bad file descriptor$/,
     'info, stdout is closed: message');

$out = qx{$engine tokenize $demo 2>&1 </};
is($? >> 8, 1, 'tokenize, a directory: status');
like($out, qr/^vlm-engine: stdin: Is a directory$/, 'tokenize: message');


# ---- check, info ----

($rc, $out) = engine('', '--model', $demo, '--check');
is($rc, 0, 'check: status');
like($out, qr/^model ok: weights 5\.7 MiB, KV cache .* context 2048 tokens\n/,
     'check: numbers');

($rc, $out) = engine('', '--model', $demo, '--check', '--device', 'cpu',
                     '--quantization', 'int8');
like($out, qr/^model ok: weights 4\.2 MiB, KV cache /, 'check: quantised');

($rc, $out) = engine('', 'info', $demo, '--json', '--size', '640x480');
is($rc, 0, 'info: status');
is(json($out)->{family}, 'qwen2_vl', 'info: family');
is(json($out)->{parameters}, 2983424, 'info: parameters');
is(json($out)->{picture}{tokens}, 30, 'info: tokens of a picture');

($rc, $out) = engine('', 'info', $demo);
like($out, qr/^model +demo, family qwen2_vl$/m, 'info: as text');


# ---- decode, pixels ----

for my $picture (qw/ a_square_224.png h_exif6_320x200.jpg
                     f_gray_301x219.png /)
{
    ($rc) = engine('', 'decode', "t/data/images/$picture", '--out',
                   "$dir/out.ppm");
    is($rc, 0, "decode $picture: status");
    ok(slurp("$dir/out.ppm") eq slurp(ppm($picture)),
       "decode $picture: as the reference decodes it");
}

my $golden = 't/data/golden/qwen2_vl/base';

for my $picture (qw/ a_square_224.png d_tiny_20x33.png f_gray_301x219.png
                     n_half28_70x154.png /)
{
    ($rc, undef, $err) = engine('', 'pixels', "$golden/model", ppm($picture),
                                '--out', "$dir/out.npy");
    is($rc, 0, "pixels $picture: status");

    my $npy = slurp("$dir/out.npy");
    my $ref = slurp("$golden/preprocess/$picture.safetensors");
    my $n = unpack('Q<', $ref);
    my $t = json(substr($ref, 8, $n))->{pixel_values};
    my ($from, $to) = @{$t->{data_offsets}};

    is(substr($npy, 0, 10), "\x93NUMPY\x01\x00\x76\x00",
       "pixels $picture: NumPy's format");
    like(substr($npy, 10, 118), qr/^\{'descr':\ '<f4',
                                   \ 'fortran_order':\ False,
                                   \ 'shape':\ \($t->{shape}[0],
                                   \ $t->{shape}[1]\),\ \}\ *\n\z/x,
         "pixels $picture: header");
    ok(substr($npy, 128) eq substr($ref, 8 + $n + $from, $to - $from),
       "pixels $picture: exactly the reference's");
}


# ---- tokenize ----

($rc, $out) = engine(qq{"Where is it?"\n"a<|im_end|>"\n""\n}, 'tokenize',
                     $demo);
is($rc, 0, 'tokenize: status');
my @lines = map { json($_) } split(/\n/, $out);
is(scalar(@lines), 3, 'tokenize: a line for each');
ok(@{$lines[1]} > 2, 'tokenize: what looks like a token is text');
is_deeply($lines[2], [], 'tokenize: an empty text');

my $ids = (split(/\n/, $out))[0];
($rc, $out) = engine("$ids\n", 'tokenize', $demo, '--decode');
is($out, qq{"Where is it?"\n}, 'tokenize: and back');

($rc, $out) = engine(qq{"a<|im_end|>"\n}, 'tokenize', $demo, '--special');
is(json($out)->[-1], 528, 'tokenize: with --special it is a token');

($rc, $out, $err) = engine(qq{"a"\nb\n}, 'tokenize', $demo);
is($rc, 1, 'tokenize: no JSON');
like($err, qr/line 2/, 'tokenize: tells the line');

($rc, $out, $err) = engine("[999999]\n", 'tokenize', $demo, '--decode');
like($err, qr/line 1: an id must be a number from 0 to \d+/,
     'tokenize: no such id');


# ---- run: the demonstration model ----

my @demo = ('run', '--model', $demo, '--log-level', 'error');

($rc, $out, $err) = engine('', @demo, '--image',
                           't/data/heldout/images/0000.png', '--prompt',
                           'Where is the cross?');
is($rc, 0, 'run: status');
is($out, "It is at the top right.\n", 'run: the answer');
is($err, '', 'run: nothing else');

($rc, $out) = engine('', @demo, '--image', 'models/samples/scene7.jpg',
                     '--prompt', 'Count the shapes.', '--json');
my $answer = json($out);
is($answer->{text}, 'There are two shapes.', 'run --json: text');
is($answer->{finish_reason}, 'stop', 'run --json: finish reason');
is($answer->{usage}{completion_tokens}, scalar(@{$answer->{ids}}),
   'run --json: ids and usage');
ok($answer->{times_us}{encode} > 0 && $answer->{times_us}{total} > 0,
   'run --json: stage times');

($rc, $out) = engine('', @demo, '--image', 'models/samples/scene7.jpg',
                     '--prompt', 'Count the shapes.', '--stop', 'two');
is($out, "There are \n", 'run: stop string');

my @sampled = (@demo, '--prompt', 'Hello', '--temperature', '2',
               '--max-tokens', '24', '--ignore-eos', '--json',
               '--logits-digest');
my @same = map { (engine('', @sampled, '--seed', '7', @$_))[1] }
           [], ['--threads', '1'], ['--max-num-batched-tokens', '16'];
is_deeply(json($same[$_])->{ids}, json($same[0])->{ids},
          "run: same seed, same tokens $_") for 1 .. 2;
is(json($same[$_])->{logits_sha256}, json($same[0])->{logits_sha256},
   "run: same logits $_") for 1 .. 2;

for my $isa (qw/ scalar avx2 avx512 /) {
    local $ENV{VLM_CPU} = $isa;
    ($rc, $out, $err) = engine('', @sampled, '--seed', '7');

  SKIP: {
        skip("no $isa here", 1) if $rc == 1 && $err =~ /VLM_CPU/;
        is(eval { json($out)->{logits_sha256} },
           json($same[0])->{logits_sha256}, "run: same logits with $isa")
            or diag($err);
    }
}

my @other = map { json((engine('', @sampled, '--seed', $_))[1])->{ids} }
            8 .. 10;
ok((grep { "@$_" ne "@{json($same[0])->{ids}}" } @other) > 0,
   'run: another seed, other tokens');

spew("$dir/bad.json", '[{"role":"user","content":[{"type":"sound"}]}]');
($rc, $out, $err) = engine('', @demo, '--messages', "$dir/bad.json");
is($rc, 1, 'messages: unknown part');
like($err, qr/bad\.json: a part must be of type/, 'messages: says so');

spew("$dir/bad.json",
     '[{"role":"user","content":[{"type":"image"}]}]');
($rc, $out, $err) = engine('', @demo, '--messages', "$dir/bad.json");
like($err, qr/the messages have 1 images, but 0 --image are given/,
     'messages: number of images');


# ---- run: golden cases, 24 greedy tokens each ----

for my $file (sort glob('t/data/golden/qwen2_vl/*/cases/*.json')) {
    my ($variant, $name) = $file =~ m{/(\w+)/cases/(\w+)\.json};
    my $case = json(slurp($file));

    spew("$dir/messages.json",
         JSON::PP->new->utf8->encode($case->{messages}));

    ($rc, $out, $err) = engine('', 'run', '--model',
        "t/data/golden/qwen2_vl/$variant/model", '--log-level', 'error',
        '--messages', "$dir/messages.json", '--temperature', '0',
        '--max-tokens', '24', '--ignore-eos', '--json',
        '--embedding-dtype', 'f32',
        map { ('--image', ppm($_->{file})) } @{$case->{images}});

    is($rc, 0, "$variant $name: status") or diag($err), next;
    is_deeply(json($out)->{ids}, $case->{w_bf16}{ids},
              "$variant $name: tokens");
    is(json($out)->{usage}{prompt_tokens}, $case->{n_input},
       "$variant $name: prompt tokens");
}

done_testing();
