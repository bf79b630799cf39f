#!/usr/bin/perl

# Runs every fuzz target for a few seconds (minutes with ./check --long), from
# small files that are here anyway and from t/fuzz/seeds/TARGET/.

use warnings;
use strict;

use File::Basename qw(basename);
use File::Copy qw(copy);
use File::Temp qw(tempdir);
use Test::More;

my $budget = $ENV{VLM_LONG} ? 4800 : 64;      # seconds, of all together
my $max_seed = 60_000;

my %seeds = (
    image_decode        => [ glob('t/data/images/*') ],
    base_json           => [ glob('models/demo/*.json') ],
    text_tokenizer_json => [ 'models/demo/tokenizer.json' ],
);

my @targets = grep { -x $_ && -f $_ } glob('build-fuzz/*');

plan(skip_all => 'no fuzz targets: make fuzz') if @targets == 0;

my $seconds = int($budget / @targets) || 1;

for my $target (@targets) {
    my $name = basename($target);
    my $dir = tempdir(CLEANUP => 1);

    for my $file (@{ $seeds{$name} || [] }, glob("t/fuzz/seeds/$name/*")) {
        copy($file, "$dir/" . basename($file)) if -s $file <= $max_seed;
    }

    my $log = "$dir.log";
    my $rc = system("$target -max_total_time=$seconds -timeout=20"
        . " -rss_limit_mb=2048 -artifact_prefix=$dir/ -print_final_stats=1"
        . " $dir >$log 2>&1");

    open my $fh, '<', $log or die "$log: $!";
    my @lines = <$fh>;
    close $fh;

    my ($runs) = map { /number_of_executed_units: (\d+)/ ? $1 : () } @lines;

    ok($rc == 0 && ($runs // 0) > 0,
        "$name: " . ($runs // 'no') . ' inputs')
        or diag(splice(@lines, @lines > 40 ? -40 : 0));

    unlink $log;
}

done_testing();
