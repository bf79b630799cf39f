#!/usr/bin/perl

# What nginx -t says of directives.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;

my $t = VLM::Test->new();

sub accepted {
    my ($name, %conf) = @_;
    my ($ok, $said) = $t->test_config(%conf);
    ok($ok, "accepted: $name") or diag($said);
    return $said;
}

sub refused {
    my ($name, $re, %conf) = @_;
    my ($ok, $said) = $t->test_config(%conf);
    ok(!$ok && $said =~ $re, "refused: $name") or diag($said);
}

sub location { (locations => "location / { $_[0] }") }

my $pass = 'vlm_pass unix:%%DIR%%/a.sock;';

accepted('the least', location($pass));
accepted('no vlm_pass at all', location('return 200;'));
accepted('everything', http => <<'EOF_CONF', location($pass));
    vlm_arena_size 256m;
    vlm_max_requests 100;
    vlm_max_request_size 8m;
    vlm_max_images 4;
    vlm_max_image_size 4m;
    vlm_max_text_size 64k;
    vlm_max_parts 32;
    vlm_system "Be brief, $remote_addr.";
    vlm_prompt "Describe this image.";
    vlm_max_tokens 100;
    vlm_connect_timeout 2s;
    vlm_queue_timeout 20s;
    vlm_read_timeout 50s;
    vlm_ping_interval 5s;
    vlm_output_buffer_size 128k;
    vlm_ignore_client_abort on;
    vlm_cache_scope $remote_user;
EOF_CONF

refused('vlm_pass twice', qr/duplicate/, location("$pass $pass"));
refused('vlm_pass in a server', qr/not allowed here/, server => $pass);
refused('not a socket', qr/emerg/, location('vlm_pass http://x/;'));
refused('no path', qr/emerg/, location('vlm_pass unix:;'));
refused('a path that no socket can have', qr/emerg/,
        location('vlm_pass unix:/' . 'x' x 120 . ';'));
refused('vlm_arena_size in a server', qr/not allowed here/,
        server => 'vlm_arena_size 1g;', location($pass));
refused('an arena smaller than a request', qr/vlm_arena_size/,
        http => 'vlm_arena_size 1m; vlm_max_request_size 8m;',
        location($pass));
refused('more pictures than a request can have', qr/between 0 and 64/,
        location("$pass vlm_max_images 65;"));

refused('no requests at all', qr/must be between 1/,
        http => 'vlm_max_requests 0;', location($pass));
refused('no tokens', qr/must be between 1/,
        location("$pass vlm_max_tokens 0;"));
refused('no parts', qr/must be between 1/,
        location("$pass vlm_max_parts 0;"));

for my $bad ('vlm_max_tokens x;', 'vlm_read_timeout x;',
             'vlm_max_image_size -1;', 'vlm_ignore_client_abort maybe;')
{
    refused($bad, qr/emerg/, location("$pass $bad"));
}

# client_max_body_size: the default is lifted, a smaller one is told

unlike(accepted('the default', location($pass)), qr/warn/,
       'nothing to warn of');
like(accepted('a smaller one', location("client_max_body_size 1k; $pass")),
     qr/\[warn\].*client_max_body_size/, 'a warning');
unlike(accepted('a larger one', location("client_max_body_size 1g; $pass")),
       qr/warn/, 'nothing to warn of');

# a nested location has what the outer one has; vlm_pass is not inherited

$t->engine('a');
$t->nginx(locations => <<'EOF_CONF');
vlm_system "Outer.";
vlm_prompt "What is it, $arg_who?";
vlm_max_tokens 3;

location /v {
    vlm_pass unix:%%DIR%%/a.sock;

    location /v/inner {
        vlm_pass unix:%%DIR%%/a.sock;
        vlm_system "Inner.";
    }

    location /v/none {
    }
}

location /big {
    vlm_pass unix:%%DIR%%/a.sock;
    vlm_max_request_size 3m;
    vlm_system "";
}
EOF_CONF

my ($engine) = @{$t->{engines}};
my $image = file('a.jpg', 'x' x 100);

sub heard {
    my ($uri, @fields) = @_;
    my $r = $t->post($uri, [ @fields ]);
    return "status $r->{status}" if $r->{status} != 200;
    return ($engine->lines(qr/^request /))[-1];
}

my $line = heard('/v?who=Bob', image => $image);
like($line, qr/part\[0\]\[0\]="Outer\."/, 'vlm_system');
like($line, qr/prompt="What is it, Bob\?"/, 'vlm_prompt, with a variable');
like($line, qr/ max_tokens=3 /, 'vlm_max_tokens is the default');

$line = heard('/v', image => $image, prompt => 'P', system => 'S',
              max_tokens => 2);
like($line, qr/part\[0\]\[0\]="S" /, 'the form has its own system message');
like($line, qr/prompt="P"/, 'its own prompt');
like($line, qr/ max_tokens=2 /, 'its own max_tokens');

like(heard('/v', prompt => 'P', max_tokens => 1000), qr/ max_tokens=3 /,
     'and the upper bound');
like(heard('/v/inner', prompt => 'P'), qr/"Inner\."/, 'nested: its own');
is($t->post('/v', [ system => 'x' ])->{status}, 400,
   'vlm_prompt needs a picture');
is($t->post('/v/none', [ prompt => 'x' ])->{status}, 404,
   'vlm_pass is not inherited');
unlike(heard('/big', prompt => 'P'), qr/role\[0\]=system/,
       'an empty vlm_system is none');

# NGINX's 1m does not count, the module's own bound does

is($t->post('/big', [ image => file('a', 'x' x 1_900_000), prompt => 'P',
                      other => 'x' x 1_000_000 ])->{status}, 200,
   'more than 1m');
is($t->post('/big', [ prompt => 'P', other => 'x' x 3_200_000 ])->{status},
   413, 'more than vlm_max_request_size');

# the access log, written when the connection has lingered

ok(wait_for(sub {
       $t->access_log()
           =~ m!^413 413 [0-9a-f]{32} \d+ "POST /big HTTP/1.1"!m
   }), '$vlm_status') or diag($t->access_log());
like($t->access_log(), qr!"POST /big HTTP/1.1" 1$!m, '$vlm_images');

$t->done();
