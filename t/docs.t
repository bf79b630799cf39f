#!/usr/bin/perl

# docs/ against the sources and the engine's own help.

use warnings;
use strict;

use Cwd ();
use Test::More;

my $build = $ENV{VLM_BUILD} // Cwd::getcwd() . '/build';
my $engine = "$build/vlm-engine";


sub slurp {
    my ($name) = @_;
    open(my $f, '<:encoding(UTF-8)', $name) or die "$name: $!";
    local $/;
    return scalar(<$f>);
}


# an arithmetic expression of numbers, undef if it is something else

sub number {
    my ($text) = @_;

    $text =~ s/\(off_t\)//g;

    return $text =~ /^[\d\s*+()]+$/ ? eval($text) : undef;
}


my @module = grep { -f } glob('ngx_vlm_module/*.c');
my $module = join('', map { slurp($_) } @module);
my $core = join('', map { slurp($_) } glob('ngx_vlm_module/core/*.c'));
my $runtime = join('', map { slurp($_) } grep { !m{/cli/} }
                   glob('engine/*/*.c engine/*/*/*.c'));


# ---- directives ----

# what a directive's "default" in the code is, as it would be written

sub code_default {
    my ($field, $setter) = @_;

    return undef unless defined $field;

    my ($expr) = $module =~ /ngx_conf_merge_\w*value\(\s*conf->\Q$field\E,
                             \s*prev->\Q$field\E,\s*([^;]*)\);/x;
    ($expr) = $module =~ /ngx_conf_init_\w*value\(\s*\w+->\Q$field\E,
                          \s*([^;]*)\);/x if !defined $expr;
    ($expr) = $module =~ /\w+->\Q$field\E\ ==\ NGX_CONF_UNSET\w*\)\ \{
                          \s*\w+->\Q$field\E\ =\ ([^;]*);/x
        if !defined $expr;

    return undef if !defined $expr || $expr eq 'NULL';

    my $n = number($expr);

    return "? $expr" if !defined $n;
    return $n ? 'on' : 'off' if $setter =~ /flag/;
    return "$n ms" if $setter =~ /msec/;
    return "$n s" if $setter =~ /_sec_/;

    return $n;
}


# the same of the documentation

sub doc_default {
    my ($text) = @_;

    my %unit = (k => 1024, m => 1024 ** 2, g => 1024 ** 3);

    return $1 * $unit{$2} if $text =~ /^(\d+)([kmg])$/;
    return $text;
}

my %context = (NGX_HTTP_MAIN_CONF => 'http', NGX_HTTP_SRV_CONF => 'server',
               NGX_HTTP_LOC_CONF => 'location',
               NGX_HTTP_LIF_CONF => 'if in location',
               NGX_HTTP_LMT_CONF => 'limit_except');
my %code;

while ($module =~ /\{\ ngx_string\("(vlm_\w+)"\),\s*((?:NGX_\w+\s*\|?\s*)+),
                   \s*(\w+),\s*[\w]+,\s*(?:offsetof\(\w+,\s*([\w.]+)\)|\w+),
                   /gx)
{
    my ($name, $flags, $setter, $field) = ($1, $2, $3, $4);

    $code{$name} = {
        context => join(', ', map { $context{$_} // () }
                        split /\s*\|\s*/, $flags),
        setter => $setter,
        default => code_default($field, $setter),
        block => $flags =~ /NGX_CONF_BLOCK/ ? 1 : 0,
    };
}

cmp_ok(scalar keys %code, '>=', 17, 'directives in the code');

my $text = slurp('docs/directives.md');
my %doc;

while ($text =~ /^\#\#\ (vlm_\w+)\n\n
                 \ {4}Syntax:\ +(.*)\n
                 \ {4}Default:\ +(.*)\n
                 \ {4}Context:\ +(.*)\n\n(?=\S)/mgx)
{
    $doc{$1} = { syntax => $2, default => $3, context => $4 };
}

is(join(' ', sort keys %doc), join(' ', sort keys %code),
   'every directive is documented, and no other');

for my $name (sort grep { $code{$_} } keys %doc) {
    my ($d, $c) = ($doc{$name}, $code{$name});

    is($d->{context}, $c->{context}, "$name: context");
    like($d->{syntax}, qr/^$name\b.*[;}]$/, "$name: syntax");

    if (!defined $c->{default}) {

        # one that is not in the configuration's merge, but must be a string
        # of the code

        if ($d->{default} =~ /^$name (".*");$/) {
            cmp_ok(index($module, $1), '>', 0, "$name: default");
        } else {
            is($d->{default}, "\x{2014}", "$name: default");
        }

        next;
    }

    my ($value) = $d->{default} =~ /^$name (\S+);$/;
    my $default = doc_default($value // 'none');

    if ($c->{default} =~ /^(\d+) ms$/) {
        my $ms = $1;
        is($value // '', $ms % 1000 ? "${ms}ms" : $ms / 1000 . 's',
           "$name: default");
    } else {
        is($default, $c->{default}, "$name: default");
    }
}

# links to directives, and other directives that are spoken of

for my $file (glob('docs/*.md')) {
    my $page = slurp($file);
    my %name = map { $_ => 1 } $page =~ /(?<![\$\w\/])(vlm_[a-z_]+\w)/g;

    is(join(' ', grep { !$code{$_} } sort keys %name), '',
       "$file: directives that exist");

    my %var = map { $_ => 1 } $page =~ /\$(vlm_[a-z_]+)/g;
    is(join(' ', grep { $_ ne 'vlm_cors_origin'
                        && $module !~ /ngx_string\("$_"\),\s*NULL/ }
            sort keys %var), '', "$file: variables that exist");

    my %link = map { $_ => 1 } $page =~ /\]\(([\w.]+\.md)\)/g;
    is(join(' ', grep { !-f "docs/$_" } sort keys %link), '',
       "$file: pages that exist");

    my %anchor = map { lc($_) =~ s/[^\w -]//gr =~ s/ /-/gr => 1 }
                 $page =~ /^#+ (.*)$/mg;
    is(join(' ', grep { !$anchor{$_} } $page =~ /\]\(#([\w-]+)\)/g), '',
       "$file: headings that exist");

    my @far = $page =~ /\]\((\w+\.md)#([\w-]+)\)/g;

    while (my ($where, $anchor) = splice(@far, 0, 2)) {
        my @headings = map { lc($_) =~ s/[^\w -]//gr =~ s/ /-/gr }
                       slurp("docs/$where") =~ /^#+ (.*)$/mg;
        ok(scalar(grep { $_ eq $anchor } @headings),
           "$file: $where#$anchor");
    }
}


# ---- variables ----

my @vars = $module =~ /\{ ngx_string\("(vlm_\w+)"\), NULL,/g;
my @documented = slurp('docs/variables.md') =~ /^`\$(vlm_\w+)`\n: /mg;

cmp_ok(scalar @vars, '>=', 13, 'variables in the code');
is(join(' ', sort @documented), join(' ', sort @vars),
   'every variable is documented, and no other');


# ---- fields of a form ----

my @fields = $core =~ /^ {4}\{ "([\w\[\]]+)", [^{}]*\}/mg;
my ($table) = slurp('docs/requests.md') =~ /^\#\# Fields\n(.*?)^\#\# /ms;
my @rows = map { /`([^`]+)`/g } $table =~ /^\| (`[^|]+) \| /mg;

cmp_ok(scalar @fields, '>=', 20, 'fields in the code');
is(join(' ', sort @rows), join(' ', sort @fields),
   'every field is documented, and no other');


# ---- errors ----

# what a format or a documented message comes to

sub pattern {
    my ($message) = @_;

    $message =~ s/%[-.*0-9]*(?:ll|z|l)?[a-zA-Z]/*/g;
    $message =~ s/(?<![A-Za-z])[NX](?![A-Za-z])/*/g;
    $message =~ s/\bNxN\b/*x*/g;

    return $message;
}

my %status = (BAD_REQUEST => 400, NOT_FOUND => 404, NOT_ALLOWED => 405,
              REQUEST_TIME_OUT => 408, REQUEST_ENTITY_TOO_LARGE => 413,
              UNSUPPORTED_MEDIA_TYPE => 415, INTERNAL_SERVER_ERROR => 500,
              BAD_GATEWAY => 502, SERVICE_UNAVAILABLE => 503,
              GATEWAY_TIME_OUT => 504);

my (%errors, %messages);
my $all = "$module\n$core\n$runtime";

$all =~ s/"\s*\n\s*"//g;
my ($accepted) = $all =~ /#define ACCEPTED +"([^"]*)"/;
$all =~ s/" ACCEPTED/$accepted"/g if defined $accepted;

while ($all =~ /(?<!\w)(NGX_HTTP_([A-Z_]+)|[45]\d\d),\s*("[a-z]\w*"|NULL),
                \s*(?:(?:NULL|param|"\w+"),\s*)?
                ((?:[\w\[\]>.-]+\s*\?\s*)?"(?:[^"\\]|\\.)*"
                 (?:\s*:\s*"(?:[^"\\]|\\.)*")?)/gx)
{
    my ($number, $name, $code, $strings) = ($1, $2, $3, $4);

    $number = $status{$name} // next if defined $name;
    $code =~ s/"//g;

    next if $number == 499 || $code eq 'NULL' && $number != 500;

    $errors{$code}{$number} = 1 if $code ne 'NULL';
    $messages{pattern($_)} = 1 for $strings =~ /"((?:[^"\\]|\\.)*)"/g;
}

cmp_ok(scalar keys %errors, '>=', 30, 'error codes in the code');

$text = slurp('docs/errors.md');
%doc = ();

for my $section (split /^##+ /m, $text) {
    my ($code) = $section =~ /^([a-z]\w*_\w+)\n/;
    my ($said) = $section =~ /^ {4}Status: +(\d+(?: or \d+)*)(?:,|$)/m;

    $doc{$code} = join(' ', sort split / or /, $said // '')
        if defined $code;

    for my $message ($section =~ /^ {4}Message: +(.*)$/mg) {
        next if $message eq 'X';
        my $p = pattern($message);
        my $re = quotemeta($p) =~ s/\\\*/.*/gr;
        ok(scalar(grep { $_ eq $p || /^$re$/ } keys %messages),
           "message: $message");
    }
}

is(join("\n", map { "$_: $doc{$_}" } sort keys %doc),
   join("\n", map { "$_: " . join(' ', sort keys %{$errors{$_}}) }
        sort keys %errors),
   'every error code is documented with its status, and no other');


# ---- options ----

SKIP: {
    skip("no $engine", 1) unless -x $engine;

    my (%help, %table);
    my @commands = ('', qw/ run info decode pixels tokenize /);

    for my $command (@commands) {
        my $name = $command || 'serve';

        for (split /\n/, `$engine $command --help`) {
            $help{$1}{$name} = 1 if /^  (--\S+(?: \S+)?) {1,}\S/
                                    && $_ =~ /^  (--[\w-]+(?: [^ ]+)?)  /
                                    || /^  (--[\w-]+ \S+) (?=[a-z])/;
        }
    }

    cmp_ok(scalar keys %help, '>=', 30, 'options in the help');

    for (split /\n/, slurp('docs/engine.md')) {
        my ($option, $for, $default, $range)
            = /^\| `(--[^`]+)` \| ([\w ]+) \| (.*?) \| (.*?) \| / or next;

        $option =~ s/\\\|/|/g;
        $for = join(' ', map { $_ || 'serve' } @commands) if $for eq 'all';
        $table{$option} = { for => join(' ', sort split / /, $for),
                            default => $default, range => $range };
    }

    is(join("\n", map { "$_: " . $table{$_}{for} } sort keys %table),
       join("\n", map { "$_: " . join(' ', sort keys %{$help{$_}}) }
            sort keys %help),
       'every option is documented with its commands, and no other');

    for my $option (sort keys %table) {
        my ($name) = $option =~ /^--([\w-]+)/;
        my ($low, $high) = $table{$option}{range} =~ /^(\S+) to (\d\S*)$/
            or next;
        my $command = $table{$option}{for} =~ /serve/ ? ''
                      : ($table{$option}{for} =~ /(\w+)/)[0];
        my $said = `$engine $command --$name 99999999999999999999999 2>&1`;

        my ($min, $max) = $said =~ /out of range: (\S+) to (\S+)$/;

        # 1.9e+19 is a way to say 64 bits

        ok(defined $min && $min == $low
           && ($max == $high || $max == 1.9e19 && $high == 18446744073709551615),
           "--$name: range")
            or diag($said);
    }

    # defaults that the help has too

    my $said = join('', map { `$engine $_ --help` } @commands);

    for my $option (sort keys %table) {
        my ($default) = $said =~ /^  \Q$option\E +\S.*\((\d+)\)$/m or next;
        is($table{$option}{default}, $default, "$option: default");
    }

    # commands that are shown give what is shown; the others tell of this
    # machine's memory, or write files

    local $ENV{PATH} = "$build:$ENV{PATH}";
    my $shown = 0;

    for my $file (glob('docs/*.md')) {
        my $page = slurp($file);

        while ($page =~ /^ {4}\$ ((?:.*\\\n)*.*)\n((?: {4}(?!\$ ).*\n)*)/mg)
        {
            my ($command, $output) = ($1, $2);

            next if $command !~ /vlm-engine (?:info|run|tokenize) /
                    || $command !~ m{models/demo} || $command =~ /--json/;

            $output =~ s/^ {4}//mg;
            is(`$command`, $output, $command =~ s/\s*\\\n\s*/ /gr);
            $shown++;
        }
    }

    cmp_ok($shown, '>=', 4, 'commands were tried');

    # each command is shown

    like(slurp('docs/engine.md'), qr/^ {4}\$ .*vlm-engine \Q$_\E /m,
         "vlm-engine $_ is shown") for grep { $_ } @commands;
}

done_testing();
