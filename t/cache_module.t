#!/usr/bin/perl

# The cache from a client's side: NGINX, the engine, a picture twice.

use warnings;
use strict;

use lib 't/lib';
use VLM::Test;
use Test::More;

my $build = $ENV{VLM_BUILD} // 'build';

plan(skip_all => "no $build/vlm-engine") if !-x "$build/vlm-engine";

my $t = VLM::Test->new();

my $engine = VLM::Test::spawn("$t->{dir}/engine.log", "$build/vlm-engine",
    '--model', 'models/demo', '--socket', "$t->{dir}/vlm.sock",
    '--max-model-len', 1024, '--prefix-cache', 'off');

$t->nginx(http => "log_format cache '\$request_id \$vlm_image_cache';\n"
              . 'access_log %%DIR%%/access.log cache;',
          locations => <<'EOF_CONF');
location /v {
    vlm_pass unix:%%DIR%%/vlm.sock;
    vlm_cache_scope $http_x_tenant;
}
EOF_CONF

sub ask {
    my ($tenant, @pictures) = @_;

    my $r = $t->post('/v', [
        (map { (image => file('p', VLM::Test::slurp(
            "t/data/heldout/images/$_.png"))) } @pictures),
        prompt => 'Describe what you see.' ],
        headers => [ 'Accept: text/plain', "X-Tenant: $tenant" ]);

    my $line;
    wait_for(sub {
        ($line) = $t->access_log() =~ /^$r->{h}{'x-request-id'} (.*)$/m;
    });

    return ($r->{status} == 200 ? $line : $r->{status}, $r->{body});
}

ok(wait_for(sub { (ask('', '0009'))[0] !~ /^\d/ }, 20), 'ready');

my ($how, $first) = ask('a', '0001');
is($how, 'miss', 'a new picture');

($how, my $again) = ask('a', '0001');
is($how, 'hit-memory', 'the same again');
is($again, $first, 'the same answer');

($how, $again) = ask('b', '0001');
is($how, 'miss', 'new to another tenant');
is($again, $first, 'the same answer');

($how) = ask('a', '0002', '0001', '0002');
is($how, 'miss,hit-memory,joined', 'three of which one is known');

kill('TERM', $engine);
reap($engine, 20);

like(VLM::Test::slurp("$t->{dir}/engine.log"),
     qr/embedding cache: encoded 4, memory hits \d+, joined 1, /,
     'the engine has counted');

done_testing();
