package VLM::Client;

# A raw HTTP/1 client for tests: says exactly which bytes are sent and when,
# and tells how an answer ended.  Every wait is bounded.

use warnings;
use strict;

use IO::Select;
use IO::Socket::INET;
use Socket qw/ SOL_SOCKET SO_LINGER SO_RCVBUF IPPROTO_TCP TCP_NODELAY
               SHUT_WR /;
use Time::HiRes qw/ time sleep /;

our $TIMEOUT = 20;


# port, and rcvbuf for a slow reader

sub new {
    my ($class, $port, %opt) = @_;

    my $s = IO::Socket::INET->new(Proto => 'tcp') or die "socket: $!";

    if ($opt{rcvbuf}) {
        setsockopt($s, SOL_SOCKET, SO_RCVBUF, pack('l', $opt{rcvbuf}))
            or die "SO_RCVBUF: $!";
    }

    setsockopt($s, IPPROTO_TCP, TCP_NODELAY, pack('l', 1));

    connect($s, Socket::pack_sockaddr_in($port, "\x7f\x00\x00\x01"))
        or die "connect to port $port: $!";

    $s->blocking(0);

    return bless {
        s => $s, buf => '', eof => 0, reset => 0, started => time(),
    }, $class;
}


# Writes all of it, while reading what comes; returns the bytes written,
# fewer if the other side has closed.

sub send {
    my ($self, $bytes, $timeout) = @_;

    local $SIG{PIPE} = 'IGNORE';

    my $end = time() + ($timeout // $TIMEOUT);
    my $sent = 0;

    while ($sent < length($bytes)) {
        my $n = syswrite($self->{s}, $bytes, 65536, $sent);

        if (defined $n) {
            $sent += $n;
            next;
        }

        last if !$!{EAGAIN};

        my $left = $end - time();
        last if $left <= 0;

        my ($r, $w) = IO::Select->select(IO::Select->new($self->{s}),
            IO::Select->new($self->{s}), undef, $left);

        if ($r && @$r && !$self->{mute}) {
            $self->fill(0);
            last if $self->{eof};
        }
    }

    return $sent;
}


# a list of [bytes, seconds to wait afterwards]

sub send_script {
    my ($self, @steps) = @_;

    for my $step (@steps) {
        my ($bytes, $delay) = @$step;
        return 0 if $self->send($bytes) != length($bytes);
        sleep($delay) if $delay;
    }

    return 1;
}


# pieces of $size bytes; each leaves as a segment of its own

sub send_pieces {
    my ($self, $bytes, $size, $delay) = @_;

    for (my $i = 0; $i < length($bytes); $i += $size) {
        my $piece = substr($bytes, $i, $size);
        return 0 if $self->send($piece) != length($piece);
        sleep($delay) if $delay;
    }

    return 1;
}


# Reads once, waiting up to $timeout; returns what came, '' at the end.

sub fill {
    my ($self, $timeout) = @_;

    return '' if $self->{eof};

    return undef
        if !IO::Select->new($self->{s})->can_read($timeout // $TIMEOUT);

    my $n = sysread($self->{s}, my $bytes, 65536);

    if (!defined $n) {
        return undef if $!{EAGAIN};
        $self->{reset} = 1;
    }

    if (!$n) {
        $self->{eof} = 1;
        return '';
    }

    $self->{buf} .= $bytes;
    $self->{last_read} = time();

    return $bytes;
}


# until the buffer matches; the text up to the end of the match, or undef

sub read_until {
    my ($self, $re, $timeout) = @_;

    my $end = time() + ($timeout // $TIMEOUT);

    while ($self->{buf} !~ /$re/) {
        my $left = $end - time();
        return undef if $left <= 0;

        my $bytes = $self->fill($left);
        return undef if defined $bytes && $bytes eq '';
    }

    $self->{buf} =~ /$re/;
    return substr($self->{buf}, 0, $+[0], '');
}


sub read_exactly {
    my ($self, $len, $timeout) = @_;

    my $end = time() + ($timeout // $TIMEOUT);

    while (length($self->{buf}) < $len) {
        my $left = $end - time();
        last if $left <= 0;

        my $bytes = $self->fill($left);
        last if defined $bytes && $bytes eq '';
    }

    return length($self->{buf}) < $len ? undef
                                       : substr($self->{buf}, 0, $len, '');
}


# the head of an answer: { status, line, raw, h => { name => value } }; status
# 0: none came

sub read_head {
    my ($self, $timeout) = @_;

    my $raw = $self->read_until(qr/\r\n\r\n/, $timeout);

    return { status => 0, h => {}, body => '', complete => 0 }
        if !defined $raw;

    my ($line, @lines) = split /\r\n/, $raw;
    my ($status) = $line =~ m!^HTTP/1\.[01] (\d{3})!
        or die "not an HTTP answer: $line";

    my %h;

    for (@lines) {
        my ($name, $value) = /^([^:]+):\s*(.*)$/ or die "bad header: $_";
        $name = lc $name;
        $h{$name} = exists $h{$name} ? "$h{$name}, $value" : $value;
    }

    return { status => $status, line => $line, raw => $raw, h => \%h };
}


# the next piece of a body: bytes, '' at its regular end, undef if it was cut

sub read_piece {
    my ($self, $head, $timeout) = @_;

    my $h = $head->{h};

    if (($h->{'transfer-encoding'} // '') eq 'chunked') {
        my $line = $self->read_until(qr/\r\n/, $timeout);
        return undef if !defined $line;

        $line =~ /^([0-9a-f]+)\r\n$/i or die "bad chunk: $line";

        my $bytes = $self->read_exactly(hex($1) + 2, $timeout);
        return undef if !defined $bytes;

        $bytes =~ s/\r\n\z// or die "bad end of chunk";
        return $bytes;
    }

    if (defined $h->{'content-length'}) {
        my $left = $head->{left} //= $h->{'content-length'};
        return '' if $left == 0;

        $self->fill($timeout) if $self->{buf} eq '';
        return undef if $self->{buf} eq '';

        my $bytes = substr($self->{buf}, 0, $left, '');
        $head->{left} -= length($bytes);
        return $bytes;
    }

    $self->fill($timeout) if $self->{buf} eq '';

    if ($self->{buf} eq '') {
        return $self->{eof} && !$self->{reset} ? '' : undef;
    }

    return substr($self->{buf}, 0, length($self->{buf}), '');
}


# a whole answer: as read_head(), with body, and complete: it was not cut

sub read_answer {
    my ($self, $timeout) = @_;

    my $head = $self->read_head($timeout);

    return $head if $head->{status} == 0;
    return $self->read_answer($timeout) if $head->{status} == 100;

    $head->{body} = '';
    $head->{complete} = 1;

    return $head if $head->{status} == 204 || $head->{status} == 304;

    for ( ;; ) {
        my $bytes = $self->read_piece($head, $timeout);

        $head->{complete} = defined $bytes ? 1 : 0;
        last if !defined $bytes || $bytes eq '';

        $head->{body} .= $bytes;
    }

    return $head;
}


# the next event of a stream whose head was read: { data }, { comment } or
# { end } and the time it came

sub next_event {
    my ($self, $head, $timeout) = @_;

    my $end = time() + ($timeout // $TIMEOUT);

    $head->{events} //= '';

    while ($head->{events} !~ /\n\n/) {
        my $left = $end - time();
        return { timeout => 1, at => time() } if $left <= 0;

        my $bytes = $self->read_piece($head, $left);

        if (!defined $bytes || $bytes eq '') {
            return { end => 1, complete => defined $bytes ? 1 : 0,
                     at => time() };
        }

        $head->{events} .= $bytes;
    }

    $head->{events} =~ s/^(.*?\n\n)//s;
    my $text = $1;
    my %event = (at => time(), raw => $text);

    if ($text =~ /^data: (.*)\n\n\z/) {
        $event{data} = $1;

    } elsif ($text =~ /^: ?(.*)\n\n\z/) {
        $event{comment} = $1;

    } else {
        die "bad event: $text";
    }

    return \%event;
}


# whether the server has closed: 'eof', 'reset', or undef after the timeout

sub closed {
    my ($self, $timeout) = @_;

    my $end = time() + ($timeout // $TIMEOUT);

    while (!$self->{eof}) {
        my $left = $end - time();
        return undef if $left <= 0;
        $self->fill($left);
    }

    return $self->{reset} ? 'reset' : 'eof';
}


sub half_close {
    my ($self) = @_;
    shutdown($self->{s}, SHUT_WR);
}


sub reset {
    my ($self) = @_;

    setsockopt($self->{s}, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0));
    close($self->{s});
}


sub close {
    my ($self) = @_;
    CORE::close($self->{s});
}


1;
