#!/usr/bin/perl

# The ready configurations, the systemd unit and "make install".

use warnings;
use strict;

use Cwd qw/ getcwd /;
use File::Temp qw/ tempdir /;
use IO::Select;
use IO::Socket::UNIX;
use POSIX ();
use Socket qw/ SOCK_DGRAM /;
use Test::More;

use lib 't/lib';
use VLM::Test;

my $root = $ENV{VLM_ROOT} // getcwd();
my $build = $ENV{VLM_BUILD} // "$root/build";

plan(skip_all => "no $build/vlm-engine") unless -x "$build/vlm-engine";

my $t = VLM::Test->new();
my $dir = $t->{dir};


sub slurp {
    my ($name) = @_;
    open(my $f, '<', $name) or return '';
    local $/;
    return scalar(<$f>) // '';
}


# a command's exit status and all that it said

sub said {
    my (@command) = @_;

    my $out = "$dir/said";

    unlink($out);
    my $status = reap(spawn($out, @command), 120);

    return (defined $status ? $status >> 8 : -1, slurp($out));
}


sub have { (said('sh', '-c', "command -v $_[0]"))[0] == 0 }


# ---- make install ----

my @make = ('make', '-s', '-C', $root, '-o', 'engine', '-o', 'module',
            'install', "B=$build");

my ($rc, $out) = said(@make, "DESTDIR=$dir/dest", 'PREFIX=/opt/vlm',
                      'NGINX_MODULES=/opt/nginx/modules');
is($rc, 0, 'make install into DESTDIR') or diag($out);

my @wanted = map { "opt/$_" } qw{
    nginx/modules/ngx_http_vlm_module.so
    vlm/sbin/vlm-engine
    vlm/lib/systemd/system/vlm-engine@.service
    vlm/lib/sysusers.d/vlm.conf
    vlm/share/ngx_vlm/index.html
    vlm/share/ngx_vlm/conf/demo.env
    vlm/share/ngx_vlm/conf/vlm.conf
    vlm/share/ngx_vlm/conf/vlm-cors.conf
    vlm/share/ngx_vlm/conf/vlm-proxy.conf
    vlm/share/ngx_vlm/models/demo/config.json
    vlm/share/ngx_vlm/models/demo/model.safetensors
    vlm/share/ngx_vlm/models/demo/tokenizer.json
    vlm/share/doc/ngx_vlm/LICENSE
    vlm/share/doc/ngx_vlm/directives.md
    vlm/share/doc/ngx_vlm/engine.md
};

is_deeply([ grep { !-f "$dir/dest/$_" } @wanted ], [], 'all is there');
is_deeply([ map { s{.*/}{}r } glob("$dir/dest/*") ], ['opt'],
          'and nothing elsewhere');
is((stat("$dir/dest/opt/vlm/sbin/vlm-engine"))[2] & 0777, 0755,
   'the engine can be executed');

my $share = "$dir/dest/opt/vlm/share/ngx_vlm";

like(slurp("$share/conf/vlm.conf"), qr{root +/opt/vlm/share/ngx_vlm;},
     'PREFIX is in vlm.conf');
like(slurp("$share/conf/demo.env"), qr{^MODEL=/opt/vlm/share/ngx_vlm/}m,
     'in the environment file');
like(slurp("$dir/dest/opt/vlm/lib/systemd/system/vlm-engine\@.service"),
     qr{^ExecStart=/opt/vlm/sbin/vlm-engine }m, 'in the unit');

($rc, $out) = said(@make, "PREFIX=$dir/prefix", "NGINX_MODULES=$dir/modules");
is($rc, 0, 'make install into PREFIX') or die($out);

($rc, $out) = said("$dir/prefix/sbin/vlm-engine", '--version');
is($rc, 0, 'what was installed runs');

($rc, $out) = said(@make, "PREFIX=$dir/prefix", "NGINX_MODULES=$dir/modules");
is($rc, 0, 'make install once more') or diag($out);


# ---- the unit, as far as it can be checked without systemd ----

my $unit_file = "$dir/prefix/lib/systemd/system/vlm-engine\@.service";
my %unit;

for (split /\n/, slurp($unit_file)) {
    push @{$unit{$1}}, $2 if /^(\w+)=(.*)$/;
}

is($unit{Type}[0], 'notify', 'Type=notify');
is($unit{Restart}[0], 'on-failure', 'Restart=on-failure');
is($unit{NoNewPrivileges}[0], 'yes', 'NoNewPrivileges=yes');
is($unit{ProtectSystem}[0], 'strict', 'ProtectSystem=strict');

SKIP: {
    skip('there is no systemd-analyze', 2) unless have('systemd-analyze');

    ($rc, $out) = said('systemd-analyze', 'verify', '--man=no', $unit_file);
    is("$rc\n$out", "0\n", 'systemd-analyze verify');

    ($rc, $out) = said('systemd-analyze', 'security', '--offline=yes',
                       '--no-pager', '--threshold=20', $unit_file);
    is($rc, 0, 'systemd-analyze security: 2.0 at most') or diag($out);
}

SKIP: {
    skip('there is no systemd-sysusers', 1) unless have('systemd-sysusers');

    ($rc, $out) = said('systemd-sysusers', "--root=$dir/dest", '--dry-run',
                       "$dir/prefix/lib/sysusers.d/vlm.conf");
    like("$rc $out", qr/^0 .*user 'vlm'.*user 'www-data'/s,
         'systemd-sysusers');
}

SKIP: {
    skip('systemd does not run here', 1) unless -d '/run/systemd/system';
    skip('only root can start a unit', 1) unless $> == 0;

    my @protect = map { my $name = $_; map { ('-p', "$name=$_") }
                                       @{$unit{$name}} }
                  grep { /^(?:Protect|Private|Restrict[ANRS]|Lock|Memory|
                              System|NoNew|Capab|Limit)/x
                         && !/ProtectHome|PrivateTmp/ } sort keys %unit;

    ($rc, $out) = said('systemd-run', '--wait', '--pipe', '--quiet', @protect,
                       "$dir/prefix/sbin/vlm-engine", 'run', '--model',
                       "$dir/prefix/share/ngx_vlm/models/demo", '--prompt',
                       'Hello');
    is($rc, 0, 'the engine works under the unit\'s protection')
        or diag($out);
}


# ExecStart of vlm-engine@demo with the environment file, as a list of words,
# its socket in $dir/run

sub exec_start {
    my %env = slurp("$dir/prefix/share/ngx_vlm/conf/demo.env")
                  =~ /^(\w+)="?(.*?)"?$/mg;

    my @words = map {
        /^\$(\w+)$/ ? split(' ', $env{$1})
                    : s/\$\{(\w+)\}/$env{$1}/gr =~ s/%i/demo/gr
                      =~ s{^/run/vlm/}{$dir/run/}r
    } split ' ', $unit{ExecStart}[0];

    return @words;
}


sub notify_socket {
    unlink("$dir/notify");

    my $s = IO::Socket::UNIX->new(Type => SOCK_DGRAM, Local => "$dir/notify")
        or die "socket: $!";
    chmod(0777, "$dir/notify");

    $ENV{NOTIFY_SOCKET} = "$dir/notify";

    return $s;
}


sub notified {
    my ($s) = @_;

    my $message = 'nothing';

    IO::Select->new($s)->can_read(30) and $s->recv($message, 100);

    return $message;
}


# What of the unit an ordinary process can have: the limit of descriptors, no
# core, no new privileges, no capabilities, another user, a root that is
# read-only, no memory that is writable and executable.

sub protected {
    my (@command) = @_;

    my @as;

    chmod(0755, $dir);
    mkdir("$dir/run");
    chmod(0777, "$dir/run");

    if ($> == 0 && have('setpriv')) {
        @as = ('setpriv', '--reuid', 65534, '--regid', 65534,
               '--clear-groups', '--no-new-privs', '--inh-caps=-all',
               '--bounding-set=-all');

        # a user who may not read these files cannot be tried
        @as = () if (said(@as, $command[0], '--version'))[0] != 0;
    }

    my $prctl = 'syscall(157, 65, 1, 0, 0, 0); exec(@ARGV) or die "$!"';
    @as = (@as, $^X, '-e', $prctl) if (POSIX::uname())[4] eq 'x86_64';

    my $limits = "ulimit -n $unit{LimitNOFILE}[0] -c 0";

    my $strict = 'mount --bind "$0" "$0" && mount -o remount,bind,ro /';

    if ($> == 0
        && (said('unshare', '-m', 'sh', '-c',
                 "$strict && ! touch /vlm-test 2>/dev/null", $dir))[0] == 0)
    {
        @as = ('unshare', '-m', 'sh', '-c', "$strict && exec \"\$@\"", $dir,
               @as);

    } else {
        diag('no read-only root here');
    }

    return ('bash', '-c', "$limits && exec \"\$@\"", 'sh', @as, @command);
}


my $notify = notify_socket();
my $pid = spawn("$dir/engine.out", protected(exec_start()));

is(notified($notify), 'READY=1', 'READY=1 from ExecStart')
    or diag(slurp("$dir/engine.out"));

my $socket = "$dir/run/demo.sock";

is((stat($socket))[2] & 0777, 0660, 'the socket is for its group');
is($unit{RuntimeDirectory}[0], 'vlm', 'and in /run/vlm');


# ---- vlm.conf with this engine ----

sub snippet {
    my ($name) = @_;

    return slurp("$dir/prefix/share/ngx_vlm/conf/$name")
               =~ s{/run/vlm/demo\.sock}{$socket}gr
               =~ s{127\.0\.0\.1:8080}{127.0.0.1:$t->{port}}gr
               =~ s{/var/log/nginx/}{$dir/}gr;
}


# nginx with nothing but the snippet

sub nginx_conf {
    my ($http, $main) = @_;

    my $user = $> == 0 ? 'user root;' : '';
    my $temp = join("\n", map { "    ${_}_temp_path $dir/$_;" }
                    qw/ client_body proxy fastcgi uwsgi scgi /);

    return <<"EOC";
$t->{load}
$user
daemon off;
pid $dir/nginx.pid;
error_log $dir/error.log info;

events {
}

http {
$temp
    access_log off;
$http
}
EOC
}


my %conf = (conf => nginx_conf(snippet('vlm.conf')));
my ($ok, $text) = $t->test_config(%conf);
ok($ok, 'nginx -t: vlm.conf') or diag($text);
unlike($text, qr/warn/, 'nothing to warn of');

$t->nginx(%conf);

my ($status, $page) = $t->curl($t->url('/'));
like($page, qr/<title>Ask about a picture/, 'the page');

my $picture = "$root/models/samples/scene1.jpg";
my @ask = ('-F', "image=\@$picture", '-F', 'prompt=What color is the square?',
           $t->url('/describe'));

($status, $text) = $t->curl('-H', 'Accept: text/plain', @ask);
is($text, "The square is yellow.\n", 'an answer of the protected engine');

ok(wait_for(sub { slurp("$dir/vlm.log") =~ /POST/ }), 'the access log');
like(slurp("$dir/vlm.log"),
     qr{^127\.0\.0\.1\s\[.*\]\s"POST\s/describe\sHTTP/1\.1"\s200/200\s\d+
        \smodel=demo\simages=1\stokens=57\+6\scached=\d+\scache=\S+
        \squeue=\d+\.\d{3}\sfirst=\d+\.\d{3}\stotal=\d+\.\d{3}
        \sid=[0-9a-f]{32}$}xm,
     'as vlm.conf says') or diag(slurp("$dir/vlm.log"));

($status, $text) = $t->curl($t->url('/status'));
like($text, qr/^ngx_vlm_requests_total\{status="200"\} 1$/m, 'the counters');

kill('TERM', $pid);
is(notified($notify), 'STOPPING=1', 'STOPPING=1');
is(reap($pid, 60), 0, 'the engine drains');
ok(!-e $socket, 'its socket is gone');
unlike(slurp("$dir/engine.out"), qr/\[(?:warn|error)\]/,
       'nothing was forbidden') or diag(slurp("$dir/engine.out"));


# ---- its system calls are those that the unit allows ----

SKIP: {
    skip('there is no systemd-analyze', 2) unless have('systemd-analyze');
    skip('strace cannot be used', 2)
        if !have('strace') || (said('strace', '-qq', 'true'))[0] != 0;

    $notify = notify_socket();
    $pid = spawn("$dir/engine.out", 'strace', '-f', '-qq', '-I4', '-o',
                 "$dir/strace", exec_start());
    is(notified($notify), 'READY=1', 'READY=1 under strace');

    $t->curl('-H', 'Accept: text/plain', @ask);

    my ($engine) = slurp("/proc/$pid/task/$pid/children") =~ /(\d+)/;
    kill('TERM', $engine);
    reap($pid, 60);

    my (%set, $name);

    for (split /\n/, (said('systemd-analyze', 'syscall-filter',
                           '--no-pager'))[1])
    {
        if (/^(?:\e\S*)?(\@[\w-]+)/) {
            $name = $1;

        } elsif (defined $name && /^ +(\@?[\w-]+)/) {
            push @{$set{$name}}, $1;
        }
    }

    my (%allowed, @todo);

    @todo = ('@default', map { split ' ' } @{$unit{SystemCallFilter}});

    while (defined(my $item = pop @todo)) {
        if ($item =~ /^\@/) {
            push @todo, @{$set{$item} // []};

        } else {
            $allowed{$item} = 1;
        }
    }

    my %used = map { $_ => 1 }
               slurp("$dir/strace") =~ /^\d+ +(?:<\.\.\. )?(\w+)[( ]/mg;

    delete $used{$_} for qw/ SIGTERM resumed /;

    cmp_ok(scalar keys %used, '>', 30, 'system calls were seen');
    is(join(' ', grep { !$allowed{$_} } sort keys %used), '',
       'SystemCallFilter= allows them');
}


$t->stop('QUIT');


# ---- CORS, and an NGINX in front ----

my $engine = $t->engine('a');
my $front = $t->free_port();
my $origin = 'https://app.example.com';

$t->nginx(http => <<"EOC", locations => <<"EOC2");
map \$http_origin \$vlm_cors_origin {
    default     "";
    "$origin"   \$http_origin;
}

server {
    listen 127.0.0.1:$front;

    location / {
        include $root/conf/vlm-proxy.conf;
        proxy_pass http://127.0.0.1:%%PORT%%;
    }
}
EOC
location /cors {
    include $root/conf/vlm-cors.conf;
    vlm_pass unix:%%DIR%%/a.sock;
}

location /plain {
    vlm_pass unix:%%DIR%%/a.sock;
}
EOC2

# header lines of an answer by name, in small letters; status

sub head {
    my ($answer) = @_;
    my ($status) = $answer =~ m{^HTTP/1\.1 (\d+)};
    my ($head) = $answer =~ /^(.*?)\r\n\r\n/s;
    my %h = map { /^([\w-]+): (.*?)\r?$/ ? (lc $1, $2) : () }
            split /\n/, $head // '';
    return ($status, \%h);
}

sub curl_head {
    my (@args) = @_;
    return head(($t->curl('-i', @args))[1]);
}

my ($code, $h) = curl_head('-X', 'OPTIONS', '-H', "Origin: $origin", '-H',
    'Access-Control-Request-Method: POST', '-H',
    'Access-Control-Request-Headers: content-type', $t->url('/cors'));
is($code, 204, 'preflight');
is($h->{'access-control-allow-origin'}, $origin, 'its origin');
is($h->{'access-control-allow-methods'}, 'POST', 'the method');
like($h->{'access-control-allow-headers'}, qr/Content-Type/, 'the headers');
is($h->{vary}, 'Origin', 'what it depends on');

for my $case ([ 200, 'an answer', '-F', 'prompt=hi' ],
              [ 400, 'a bad form', '-F', 'prompt=' ],
              [ 405, 'a GET' ],
              [ 413, 'an upload that is too large', '-H',
                'Content-Length: 99999999', '-d', 'x', '-H',
                "Content-Type: ${\ form_type()}" ],
              [ 415, 'not a form', '-d', 'x' ],
              [ 503, 'an error of the engine', '-F',
                'prompt=!busy 7' ])
{
    my ($want, $what, @args) = @$case;

    ($code, $h) = curl_head('-H', "Origin: $origin", @args,
                            $t->url('/cors'));
    is($code, $want, $what);
    is($h->{'access-control-allow-origin'}, $origin, "$what: its origin");
    like($h->{'access-control-expose-headers'}, qr/X-Request-Id/,
         "$what: what pages may read");
}

is($h->{'retry-after'}, 7, 'Retry-After');

($code, $h) = curl_head('-H', 'Origin: https://evil.example', '-F',
                        'prompt=hi', $t->url('/cors'));
is($code, 200, 'another origin');
is($h->{'access-control-allow-origin'}, undef, 'is not allowed');

$engine->stop();
($code, $h) = curl_head('-H', "Origin: $origin", '-F', 'prompt=hi',
                        $t->url('/cors'));
is($code, 502, 'no engine');
is($h->{'access-control-allow-origin'}, $origin, 'no engine: its origin');
$engine->start();
ok(wait_for(sub { $t->post('/plain', [ prompt => 'x' ])->{status} == 200 }),
   'it is back');

# through the proxy: the first token arrives while the engine goes on, and
# uploads are not stored on their way

my $c = $t->client(port => $front);
$c->send(request('/plain', form([ prompt => '!progress' ])));

ok($engine->wait_lines(qr/prompt="!progress"/), 'a request through the proxy');
ok(!$engine->lines(qr/^cancel/), 'goes on');
$c->close();
ok($engine->wait_lines(qr/^cancel/), 'until its client leaves');

$c = $t->client(port => $front);
$c->send(request('/plain', form([ prompt => '!silent 2' ])));
my $answer = $c->read_head();
is($answer->{status}, 200, 'a stream through the proxy');
like($c->next_event($answer)->{data}, qr/"role"/, 'its first event');
like($c->next_event($answer)->{data}, qr/"content"/,
     'a token, though nothing follows');
$c->close();

my $body = form([ image => file('a.jpg', 'x' x 1_500_000), prompt => 'P' ]);
my $request = request('/plain', $body);

$c = $t->client(port => $front);
$c->send($request);
is($c->read_answer()->{status}, 200, 'an upload of more than 1m');
unlike($t->log(), qr/buffered to a temporary file/, 'was not stored');
$c->close();

$t->expect_errors();
$t->done();
