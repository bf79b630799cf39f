package VLM::Test;

# Runs nginx with the module, and fake engines, for one test file.
#
#     my $t = VLM::Test->new();
#     my $engine = $t->engine('a');             # socket a.sock in the prefix
#     $t->nginx(locations => 'location /a { vlm_pass unix:%%DIR%%/a.sock; }');
#     my $answer = $t->post('/a', [ prompt => 'hi' ]);
#     $t->done();
#
# done() stops nginx by QUIT and fails on any [alert], [emerg], or sanitizer
# line in its logs that expect_errors() has not named.
#
# TEST_NGINX_BINARY names another nginx; with TEST_NGINX_STATIC=1 the module
# is compiled into it.  TEST_VLM_LEAVE=1 keeps the prefix.

use warnings;
use strict;

use Exporter qw/ import /;
use File::Temp qw/ tempdir /;
use IO::Socket::INET;
use JSON::PP;
use POSIX qw/ WNOHANG /;
use Test::More;
use Time::HiRes qw/ time sleep /;

use VLM::Client;

our @EXPORT = qw/ form file request wait_for json events spawn reap
                  form_type /;

my $ROOT = $ENV{VLM_ROOT} // do { require Cwd; Cwd::getcwd() };
my $BUILD = $ENV{VLM_BUILD} // "$ROOT/build";
my $BOUNDARY = 'vlm-test-boundary';

my (@all, $main_pid);

$main_pid = $$;
prctl(36, 1);                       # PR_SET_CHILD_SUBREAPER
$SIG{INT} = $SIG{TERM} = sub { exit(1) };
$SIG{PIPE} = 'IGNORE';


sub new {
    my ($class, %opt) = @_;

    my $binary = $ENV{TEST_NGINX_BINARY} // '/usr/sbin/nginx';
    my $module = "$BUILD/ngx_http_vlm_module.so";

    if (!-x $binary || (!$ENV{TEST_NGINX_STATIC} && !-f $module)) {
        plan(skip_all => "no $binary or no $module");
    }

    if (!-x "$BUILD/fake_engine") {
        plan(skip_all => "no $BUILD/fake_engine");
    }

    my $self = bless {
        dir => tempdir('vlm-test-XXXXXX', TMPDIR => 1,
                       CLEANUP => !$ENV{TEST_VLM_LEAVE}),
        binary => $binary,
        load => $ENV{TEST_NGINX_STATIC} ? '' : "load_module $module;",
        expected => [],
        engines => [],
        ports => [],
    }, $class;

    # what a worker that stops at once may leave: its connections, and the
    # arena that its requests still point to

    $self->write_file('lsan.txt', "leak:ngx_event_process_init\n"
                                  . "leak:vlm_arena_create\n");
    $ENV{LSAN_OPTIONS} = "suppressions=$self->{dir}/lsan.txt:"
        . 'print_suppressions=0';

    push @all, $self;
    $self->{port} = $self->free_port();

    return $self;
}


# A port nobody uses: whoever holds it binds it at 127.0.0.2 for as long as
# the test runs.  Below the range of ports for outgoing connections.

sub free_port {
    my ($self) = @_;

    for (1 .. 1000) {
        my $port = 18000 + int(rand(14000));

        my $lock = IO::Socket::INET->new(LocalAddr => '127.0.0.2',
            LocalPort => $port, Proto => 'tcp', Listen => 1) or next;
        IO::Socket::INET->new(LocalAddr => '127.0.0.1', ReuseAddr => 1,
            LocalPort => $port, Proto => 'tcp', Listen => 1) or next;

        push @{$self->{ports}}, $lock;
        return $port;
    }

    die "no free port";
}


# Starts a program that dies with this test; returns its pid.

sub spawn {
    my ($out, @command) = @_;

    my $pid = fork() // die "fork: $!";
    return $pid if $pid;

    $SIG{INT} = $SIG{TERM} = $SIG{PIPE} = 'DEFAULT';

    # PR_SET_PDEATHSIG; without it END does the same for all but SIGKILL
    prctl(1, 15);

    open(STDIN, '<', '/dev/null');
    open(STDOUT, '>>', $out);
    open(STDERR, '>>', $out);

    { no warnings; exec(@command); }
    POSIX::_exit(127);
}


sub prctl {
    my ($option, $value) = @_;

    my %numbers = (x86_64 => 157, aarch64 => 167);
    my $number = $numbers{(POSIX::uname())[4]};
    syscall($number, $option, $value) if $number;
}


# Waits for a child; returns its wait status, or undef after the time.

sub reap {
    my ($pid, $seconds) = @_;

    my $status;

    wait_for(sub {
        my $rc = waitpid($pid, WNOHANG);
        $status = $rc == $pid ? $? : undef;
        return $rc != 0;
    }, $seconds);

    return $status;
}


sub wait_for {
    my ($condition, $seconds) = @_;

    my $end = time() + ($seconds // $VLM::Client::TIMEOUT);

    for ( ;; ) {
        my $value = $condition->();
        return $value if $value;
        return undef if time() > $end;
        sleep(0.01);
    }
}


sub slurp {
    my ($name) = @_;

    open(my $f, '<:raw', $name) or return '';
    local $/;
    return <$f> // '';
}


sub write_file {
    my ($self, $name, $bytes) = @_;

    open(my $f, '>:raw', "$self->{dir}/$name") or die "$name: $!";
    print $f $bytes;
    close($f) or die "$name: $!";

    return "$self->{dir}/$name";
}


# a fake engine, listening when this returns

sub engine {
    my ($self, $name, @args) = @_;

    my $engine = VLM::Test::Engine->new($self, $name, @args);
    push @{$self->{engines}}, $engine;

    return $engine;
}


# main, events, http, listen, server, locations: text for these places;
# %%DIR%% and %%PORT%% are replaced.  workers, master, daemon, conf (the whole
# file).

sub nginx {
    my ($self, %opt) = @_;

    $self->configure(%opt);

    $self->{nginx} = spawn("$self->{dir}/stderr.log", $self->command());

    if ($opt{daemon}) {
        # what it leaves behind becomes a child of ours
        wait_for(sub { waitpid($self->{nginx}, WNOHANG) });
        wait_for(sub { $self->{nginx} = $self->pid() }, 5);
    }

    my $up = wait_for(sub {
        return 1 if waitpid($self->{nginx}, WNOHANG) == $self->{nginx};
        return -s "$self->{dir}/nginx.pid"
               && IO::Socket::INET->new(PeerAddr => '127.0.0.1',
                                        PeerPort => $self->{port})
               && (!($opt{master} // 1)
                   || $self->workers() == ($opt{workers} // 1));
    });

    if (!$up || !kill(0, $self->{nginx})) {
        undef $self->{nginx};
        die "nginx does not start:\n"
            . join("\n", (split /\n/, $self->log())[-5 .. -1]) . "\n"
            . slurp("$self->{dir}/stderr.log");
    }

    return $self;
}


sub command {
    my ($self, @args) = @_;

    return ($self->{binary}, '-p', $self->{dir}, '-c',
            "$self->{dir}/nginx.conf", '-e', "$self->{dir}/error.log", @args);
}


sub configure {
    my ($self, %opt) = @_;

    my $text = $opt{conf} // <<'EOC';
%%LOAD%%
%%USER%%
%%DAEMON%%
%%MASTER%%
worker_processes %%WORKERS%%;
pid %%DIR%%/nginx.pid;
error_log %%DIR%%/error.log %%LEVEL%%;
%%MAIN%%

events {
    worker_connections 512;
    %%EVENTS%%
}

http {
    log_format vlm '$status $vlm_status $request_id $bytes_sent '
                   '"$request" $vlm_images';
    access_log %%DIR%%/access.log vlm;
    client_body_temp_path %%DIR%%/body;
    proxy_temp_path %%DIR%%/proxy;
    fastcgi_temp_path %%DIR%%/fastcgi;
    uwsgi_temp_path %%DIR%%/uwsgi;
    scgi_temp_path %%DIR%%/scgi;
    vlm_arena_size 64m;
    vlm_max_request_size 4m;
    vlm_max_image_size 2m;
    %%HTTP%%

    server {
        listen 127.0.0.1:%%PORT%% %%LISTEN%%;
        %%SERVER%%

        %%LOCATIONS%%
    }
}
EOC

    # the harness's own sizes, where the test sets them itself

    for my $name (qw/ vlm_arena_size vlm_max_request_size
                      vlm_max_image_size access_log /)
    {
        $text =~ s/^ {4}$name .*;\n//m if ($opt{http} // '') =~ /\b$name\b/;
    }

    my %value = (
        LOAD => $self->{load},
        USER => $> == 0 ? 'user root;' : '',
        MASTER => ($opt{master} // 1) ? '' : 'master_process off;',
        DAEMON => $opt{daemon} ? '' : 'daemon off;',
        WORKERS => $opt{workers} // 1,
        LEVEL => $ENV{TEST_VLM_DEBUG} ? 'debug' : 'info',
        MAIN => $opt{main} // '',
        EVENTS => $opt{events} // '',
        HTTP => $opt{http} // '',
        LISTEN => $opt{listen} // '',
        SERVER => $opt{server} // '',
        LOCATIONS => $opt{locations} // '',
    );

    my $names = join('|', keys %value);

    $text =~ s/%%($names)%%/$value{$1}/g;
    $text =~ s/%%DIR%%/$self->{dir}/g;
    $text =~ s/%%PORT%%/$self->{port}/g;

    $self->write_file('nginx.conf', $text);

    return $self;
}


# nginx -t of a configuration: (accepted, what it said)

sub test_config {
    my ($self, %opt) = @_;

    $self->configure(%opt);

    my $out = "$self->{dir}/configtest.log";
    unlink($out);

    my $pid = spawn($out, $self->{binary}, '-t', '-p', $self->{dir}, '-c',
                    "$self->{dir}/nginx.conf", '-e',
                    "$self->{dir}/configtest-error.log");
    my $status = reap($pid, 20);

    return (defined $status && $status == 0, slurp($out));
}


# whether this nginx was compiled with AddressSanitizer

sub sanitized {
    my ($self) = @_;

    return $self->{sanitized} //= slurp($self->{binary}) =~ /__asan_init/
                                  ? 1 : 0;
}


sub pid {
    my ($self) = @_;
    my ($pid) = slurp("$self->{dir}/nginx.pid") =~ /^(\d+)/;
    return $pid;
}


# the children of the master that are not on their way out

sub workers {
    my ($self, $master) = @_;

    $master //= $self->{nginx};

    my @pids = split ' ', slurp("/proc/$master/task/$master/children");

    return grep { slurp("/proc/$_/cmdline") =~ /worker process\0*$/ } @pids;
}


sub signal {
    my ($self, $signal) = @_;
    kill($signal, $self->{nginx}) or die "nginx is gone";
}


# HUP, and waits for the new workers, and until the old ones accept no more

sub reload {
    my ($self, %opt) = @_;

    $self->configure(%opt) if %opt;

    my %old = map { $_ => 1 } $self->workers();
    $self->signal('HUP');

    return wait_for(sub {
        my @workers = $self->workers();
        return @workers && !grep { $old{$_} } @workers;
    });
}


# Returns the wait status of a stopped nginx, undef if it does not stop.

sub stop {
    my ($self, $signal, $seconds) = @_;

    my $pid = delete $self->{nginx} or return 0;

    kill($signal // 'QUIT', $pid);
    my $status = reap($pid, $seconds // 30);

    if (!defined $status) {
        kill('KILL', $self->workers($pid), $pid);
        reap($pid, 5);
    }

    return $status;
}


sub log {
    my ($self) = @_;
    return slurp("$self->{dir}/error.log");
}


sub access_log {
    my ($self) = @_;
    return slurp("$self->{dir}/access.log");
}


sub wait_log {
    my ($self, $re, $seconds) = @_;
    return wait_for(sub { $self->log() =~ /$re/ }, $seconds);
}


sub expect_errors {
    my ($self, @patterns) = @_;
    push @{$self->{expected}}, @patterns;
}


sub done {
    my ($self) = @_;

    is($self->stop('QUIT'), 0, 'nginx quits') if $self->{nginx};
    is_deeply([ map { $_->finish() } @{$self->{engines}} ], [],
              'engines are well');

    my @bad = grep {
        my $line = $_;
        $line =~ /\[(?:alert|emerg)\]|Sanitizer|runtime error:/
            && !grep { $line =~ $_ } @{$self->{expected}};
    } split /\n/, $self->log() . "\n" . slurp("$self->{dir}/stderr.log");

    is(join("\n", @bad), '', 'no alerts, no sanitizer reports');

    done_testing();
}


END {
    my $status = $?;

    if (defined $main_pid && $$ == $main_pid) {

        for my $self (@all) {
            $self->stop('TERM', 5) if $self->{nginx};
            $_->finish() for @{$self->{engines}};
            kill('TERM', @{$self->{others} // []});
        }
    }

    $? = $status;
}


# requests

sub file {
    my ($name, $bytes, $type) = @_;
    return { name => $name, bytes => $bytes,
             type => $type // 'application/octet-stream' };
}


# [ name => value or file(), ... ] as a body

sub form {
    my ($fields, $boundary) = @_;

    $boundary //= $BOUNDARY;

    my @fields = @$fields;
    my $body = '';

    while (@fields) {
        my ($name, $value) = splice(@fields, 0, 2);

        $body .= "--$boundary\r\nContent-Disposition: form-data; "
            . "name=\"$name\"";

        if (ref $value) {
            $body .= "; filename=\"$value->{name}\"\r\n"
                . "Content-Type: $value->{type}\r\n\r\n$value->{bytes}\r\n";

        } else {
            $body .= "\r\n\r\n$value\r\n";
        }
    }

    return "$body--$boundary--\r\n";
}


sub form_type { "multipart/form-data; boundary=$BOUNDARY" }


# A POST as bytes.  headers (a list of lines), type, method, version,
# chunked (bytes of a chunk), length (a lie), close.

sub request {
    my ($uri, $body, %opt) = @_;

    my $method = $opt{method} // 'POST';
    my $version = $opt{version} // '1.1';
    my $type = $opt{type} // form_type();

    my $head = "$method $uri HTTP/$version\r\nHost: localhost\r\n";
    $head .= "Content-Type: $type\r\n" if $type ne '';
    $head .= "$_\r\n" for @{$opt{headers} // []};
    $head .= "Connection: close\r\n" if $opt{close};

    if ($opt{chunked}) {
        my $chunks = '';

        for (my $i = 0; $i < length($body); $i += $opt{chunked}) {
            my $piece = substr($body, $i, $opt{chunked});
            $chunks .= sprintf("%x\r\n%s\r\n", length($piece), $piece);
        }

        return "${head}Transfer-Encoding: chunked\r\n\r\n${chunks}0\r\n\r\n";
    }

    my $length = $opt{length} // length($body);

    return "${head}Content-Length: $length\r\n\r\n$body";
}


sub client {
    my ($self, %opt) = @_;
    return VLM::Client->new($opt{port} // $self->{port}, %opt);
}


# one request on a connection of its own, and the whole answer

sub exchange {
    my ($self, $bytes, $timeout) = @_;

    my $c = $self->client();

    $c->send($bytes, $timeout);
    my $answer = $c->read_answer($timeout);
    $c->close();

    return $answer // { status => 0, h => {}, body => '', complete => 0 };
}


sub post {
    my ($self, $uri, $fields, %opt) = @_;

    my $body = ref $fields ? form($fields) : $fields;

    return $self->exchange(request($uri, $body, %opt), $opt{timeout});
}


# curl's exit status and output

sub curl {
    my ($self, @args) = @_;

    my $out = "$self->{dir}/curl.out";
    unlink($out);

    my $pid = spawn("$self->{dir}/curl.err", 'curl', '-sS', '--max-time', 30,
                    '-o', $out, @args);
    my $status = reap($pid, 40);

    return ((defined $status ? $status >> 8 : -1), slurp($out));
}


sub url {
    my ($self, $path) = @_;
    return "http://127.0.0.1:$self->{port}$path";
}


sub json {
    my ($text) = @_;
    return eval { JSON::PP->new->utf8->decode($text) } // { invalid => $text };
}


# the data of a stream's events, decoded but for [DONE]; comments are left out

sub events {
    my ($text) = @_;

    return map { $_ eq '[DONE]' ? $_ : json($_) }
           map { /^data: (.*)$/ ? $1 : () } split /\n\n/, $text;
}


package VLM::Test::Engine;

use Time::HiRes qw/ sleep /;
use Test::More;


sub new {
    my ($class, $test, $name, @args) = @_;

    my $self = bless {
        dir => $test->{dir}, name => $name, args => \@args,
        log => "$test->{dir}/$name.log", out => "$test->{dir}/$name.out",
        socket => "$test->{dir}/$name.sock",
    }, $class;

    return $self->start();
}


# again, with other arguments if there are some

sub start {
    my ($self, @args) = @_;

    @args = @{$self->{args}} if !@args;

    unlink($self->{out});
    $self->{pid} = VLM::Test::spawn($self->{out}, "$BUILD/fake_engine",
        '--socket', $self->{socket}, '--log', $self->{log}, @args);

    VLM::Test::wait_for(sub {
        VLM::Test::slurp($self->{out}) =~ /ready/
    }) or die "the fake engine does not start: "
              . VLM::Test::slurp($self->{out});

    return $self;
}


sub signal {
    my ($self, $signal) = @_;
    kill($signal, $self->{pid}) or die "the fake engine is gone";
}


sub stop {
    my ($self, $signal) = @_;

    my $pid = delete $self->{pid} or return 0;

    kill('CONT', $pid);
    kill($signal // 'TERM', $pid);
    my $status = VLM::Test::reap($pid, 10);

    if (!defined $status) {
        kill('KILL', $pid);
        VLM::Test::reap($pid, 5);
    }

    return $status;
}


sub kill_now { $_[0]->stop('KILL') }


# it has exited by itself

sub wait_exit {
    my ($self) = @_;

    my $pid = delete $self->{pid} or return 0;

    return defined VLM::Test::reap($pid, 10);
}


# stops it; a message if it was not well

sub finish {
    my ($self) = @_;

    my $status = $self->{pid} ? $self->stop() : 0;
    my $out = VLM::Test::slurp($self->{out});

    return () if defined $status && $status == 0
                 && $out !~ /Sanitizer|runtime error:/;

    return "$self->{name}: status " . ($status // 'none') . "\n$out";
}


sub log {
    my ($self) = @_;
    return VLM::Test::slurp($self->{log});
}


# the log's lines that match

sub lines {
    my ($self, $re) = @_;
    return grep { /$re/ } split /\n/, $self->log();
}


# waits until at least $n lines match

sub wait_lines {
    my ($self, $re, $n, $seconds) = @_;

    return VLM::Test::wait_for(sub { $self->lines($re) >= ($n // 1) },
                               $seconds);
}


1;
