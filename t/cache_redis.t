#!/usr/bin/perl

# Engines that share a Redis: who hits what, and that nobody can tell by the
# bits.

use warnings;
use strict;

use File::Copy qw/ copy /;
use File::Temp qw/ tempdir /;
use IO::Socket::INET;
use JSON::PP;
use Test::More;
use Time::HiRes qw/ sleep /;

my $build = $ENV{VLM_BUILD} // 'build';
my $engine = "$build/vlm-engine";
my $dir = tempdir('vlm-cache-XXXXXX', TMPDIR => 1, CLEANUP => 1);
our $demo = 'models/demo';
my ($redis, $port);

plan(skip_all => "no $engine") unless -x $engine;
plan(skip_all => 'no redis-server')
    if system('redis-server --version >/dev/null 2>&1') != 0;

END {
    my $status = $?;
    if ($redis) { kill('KILL', $redis); waitpid($redis, 0) }
    $? = $status;
}

$ENV{XDG_CACHE_HOME} = "$dir/cache";


sub start_redis {
    my $socket = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1')
        or die "socket: $!";
    $port = $socket->sockport;
    close $socket;

    $redis = fork() // die "fork: $!";

    if (!$redis) {
        open(STDOUT, '>', "$dir/redis.log");
        { no warnings; exec('redis-server', '--port', $port, '--bind',
            '127.0.0.1', '--save', '', '--dir', $dir, @_); }
        require POSIX;
        POSIX::_exit(127);
    }

    for (1 .. 1000) {
        return if IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port");
        sleep(0.01);
    }

    die 'redis-server does not start';
}


# One command by RESP; the reply as a string, number, list or undef.

sub redis {
    my $s = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port")
        or die "Redis: $!";

    print $s '*' . @_ . "\r\n", map { '$' . length($_) . "\r\n$_\r\n" } @_;
    return reply($s);
}


sub reply {
    my ($s) = @_;
    my ($kind, $rest) = (readline($s) // '') =~ /^([\$*:+-])(.*)\r\n\z/s
        or die 'no reply';

    return $rest if $kind =~ /[:+-]/;
    return [map { reply($s) } 1 .. $rest] if $kind eq '*';
    return if $rest < 0;

    read($s, my $data, $rest + 2);
    return substr($data, 0, $rest);
}


# One answer: its outcomes, and all else that must be the same.

sub ask {
    my ($options, @images) = @_;
    my @images_of = map { ('--image', "t/data/heldout/images/$_.png") }
                    @images ? @images : '0000';

    open(my $out, '-|', $engine, 'run', '--json', '--logits-digest',
         '--log-level', 'error', '--model', $demo, '--threads', 2,
         '--redis', "redis://127.0.0.1:$port", '--redis-timeout', 10000,
         '--prompt', 'Describe what you see.', @images_of, @$options)
        or die "$engine: $!";
    my $answer = do { local $/; decode_json(<$out>) };
    close $out;

    return ($answer->{image_cache},
            "$answer->{text} $answer->{logits_sha256}");
}


start_redis();

# hits are misses, bit for bit

for my $dtype (qw/ bf16 f16 f32 int8 /) {
    my @o = ('--embedding-dtype', $dtype);
    my ($how, $first) = ask(\@o);
    is($how, 'miss', "$dtype: encoded");

    ($how, my $again) = ask(\@o);
    is($how, 'hit-redis', "$dtype: another engine has it");
    is($again, $first, "$dtype: the same bits");
}

# several at once, some of them known

{
    my ($how, $first) = ask([], '0001', '0000', '0002');
    is($how, 'miss,hit-redis,miss', 'one of three');

    ($how, my $again) = ask([], '0001', '0000', '0002');
    is($how, 'hit-redis,hit-redis,hit-redis', 'all three');
    is($again, $first, 'the same bits');

    my ($memory) = ask([], '0001', '0001');
    is($memory, 'hit-redis,joined', 'one twice is asked for once');
}

# other settings, other models

{
    my ($how) = ask(['--max-pixels', 9000]);
    is($how, 'miss', 'another size');

    ($how) = ask(['--max-pixels', 1000000]);
    is($how, 'hit-redis', 'a setting that gives the same size');

    ($how) = ask(['--quantization', 'int8']);
    is($how, 'hit-redis', 'the decoder quantised: the same embeddings');

    ($how, my $first) = ask(['--vision-quantization', 'int8']);
    is($how, 'miss', 'the tower quantised: others');

    ($how, my $again) = ask(['--vision-quantization', 'int8']);
    is("$how $again", "hit-redis $first", 'for all that have it so');

    mkdir("$dir/model");
    copy($_, "$dir/model") for glob("$demo/*.json"), "$demo/model.safetensors";
    local $demo = "$dir/model";

    ($how) = ask([]);
    is($how, 'hit-redis', 'the same model elsewhere');
    ok(-f "$dir/model/.vlm-vision-digest", 'whose digest is kept');

    # a bit of a weight of the tower

    open(my $f, '+<:raw', "$dir/model/model.safetensors") or die $!;
    read($f, my $length, 8);
    $length = unpack('Q<', $length);
    read($f, my $header, $length);
    my $tensors = decode_json($header);
    my ($name) = grep { /visual.*blocks\.0.*fc1\.weight/ } sort keys %$tensors;
    seek($f, 8 + $length + $tensors->{$name}{data_offsets}[0], 0);
    read($f, my $byte, 1);
    seek($f, -1, 1);
    print $f chr(ord($byte) ^ 1);
    close $f;

    ($how) = ask([]);
    is($how, 'miss', "another model: a bit of $name");
}

# values that are none

{
    redis('FLUSHALL');
    my (undef, $first) = ask([]);
    my ($name) = @{redis('KEYS', 'vlm:emb:1:*')};
    my $value = redis('GET', $name);
    my $wrong = 0;

    is(substr($value, 0, 8), 'VLMEMBED', 'a value in Redis');
    cmp_ok(redis('PTTL', $name), '>', 604_800_000 * 0.89, 'for a week');

    for my $bad ('', 'x', substr($value, 0, -1), "$value ",
                 substr($value, 0, 8) . chr(2) . substr($value, 9),
                 map { substr($value, 0, $_)
                       . (substr($value, $_, 1) ^ chr(4))
                       . substr($value, $_ + 1) }
                 30, 62, 100, length($value) / 2, length($value) - 1)
    {
        redis('SET', $name, $bad);
        my ($how, $answer) = ask([]);
        $wrong++ if $how ne 'miss' || $answer ne $first;
        ask([]) if $bad eq '';              # found when it is to be stored
        $wrong++ if redis('GET', $name) ne $value;
    }

    is($wrong, 0, 'what is damaged is encoded again and replaced');

    # the value of another key

    my (undef, undef) = ask([], '0005');
    my ($other) = grep { $_ ne $name } @{redis('KEYS', 'vlm:emb:1:*')};
    redis('SET', $name, redis('GET', $other));
    my ($how, $answer) = ask([]);
    is($how, 'miss', 'the value of another picture');
    is($answer, $first, 'is not used');

    redis('DEL', $name);
    redis('LPUSH', $name, 'x');
    ($how, $answer) = ask([]);
    is("$how $answer", "miss $first", 'a list where a value should be');
    ask([]);
    is(redis('GET', $name), $value, 'is replaced');
}

# full, closed, gone: the answer is the same

{
    redis('FLUSHALL');
    redis('CONFIG', 'SET', 'maxmemory', 1);
    my ($how, $first) = ask([]);
    is($how, 'miss', 'a Redis that is full');
    redis('CONFIG', 'SET', 'maxmemory', 0);
    is(redis('DBSIZE'), 0, 'nothing was stored');

    redis('CONFIG', 'SET', 'requirepass', 'secret');
    ($how, my $answer) = ask([]);
    is("$how $answer", "miss $first", 'without its password');

    open(my $f, '>', "$dir/password") or die $!;
    print $f "secret\n";
    close $f;

    ask(['--redis-password-file', "$dir/password"]);
    ($how, $answer) = ask(['--redis-password-file', "$dir/password"]);
    is("$how $answer", "hit-redis $first", 'with its password from a file');

    kill('KILL', $redis);
    waitpid($redis, 0);
    undef $redis;
    ($how, $answer) = ask([]);
    is("$how $answer", "miss $first", 'without Redis');
}

done_testing();
