# make                  engine and module
# make test-bins        unit tests, the fake engine
# make fuzz             libFuzzer targets (clang)
# make bench            benchmarks
# make install          engine, module, configuration, documentation
#
# SAN=1   AddressSanitizer and UndefinedBehaviorSanitizer, in build-asan/
# TSAN=1  ThreadSanitizer, in build-tsan/
# CC=clang builds in build-clang/

CC ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif

suffix :=
ifneq (,$(findstring clang,$(CC)))
suffix := -clang
endif

OPT := -O2
ifdef SAN
suffix := $(suffix)-asan
SANFLAGS := -fsanitize=address,undefined -fno-sanitize-recover=undefined \
            -fno-omit-frame-pointer
OPT := -O1
endif
ifdef TSAN
suffix := $(suffix)-tsan
# memcpy() as a call: what gcc inlines the sanitizer does not see
SANFLAGS := -fsanitize=thread -fno-builtin-memcpy -fno-omit-frame-pointer
OPT := -O1
endif

B := build$(suffix)

VERSION := 0.1.0

WARN := -Wall -Wextra -Werror -Wpointer-arith -Wstrict-prototypes \
        -Wmissing-prototypes -Wno-unused-parameter
CFLAGS ?= -g
FP := -ffp-contract=off -fno-math-errno -fno-trapping-math
PKGS := libpcre2-8 libutf8proc yajl spng libjpeg libwebp libwebpdemux \
        libcrypto zlib hiredis

ALL_CFLAGS = -std=c11 -D_GNU_SOURCE -DVLM_VERSION='"$(VERSION)"' -I. $(OPT) \
    $(WARN) $(FP) $(CFLAGS) $(SANFLAGS) $(shell pkg-config --cflags $(PKGS)) \
    -pthread -MMD -MP
LIBS = $(shell pkg-config --libs $(PKGS)) -lgif -lm -pthread
TEST_LIBS := -lwebpmux
LINK = $(CC) $(CFLAGS) $(SANFLAGS) -pthread

# one static library a component, in the order of dependency

channel_src := $(wildcard engine/channel/*.c)
base_src    := $(wildcard engine/base/*.c)
kernels_src := $(wildcard kernels/cpu/*.c)
image_src   := $(wildcard engine/image/*.c)
text_src    := $(wildcard engine/text/*.c)
model_src   := $(wildcard engine/model/*.c engine/model/families/*.c)
cache_src   := $(wildcard engine/cache/*.c)
runtime_src := $(wildcard engine/runtime/*.c)
cli_src     := $(wildcard engine/cli/*.c)
core_src    := $(wildcard ngx_vlm_module/core/*.c)
testlib_src := $(wildcard t/unit/lib/*.c)

components := channel base kernels image text model cache runtime cli core \
    testlib

lib = $(B)/lib$(1).a

define component
$(1)_obj := $$(patsubst %.c,$$(B)/%.o,$$($(1)_src))
$$(call lib,$(1)): $$($(1)_obj)
	@rm -f $$@
	@ar rcs $$@ $$^
endef
$(foreach c,$(components),$(eval $(call component,$(c))))

needs_channel := channel
needs_base    := base
needs_kernels := kernels
needs_image   := image base
needs_text    := text channel base
needs_model   := model text image kernels channel base
needs_cuda    := cuda $(needs_model)
needs_cache   := cache base
needs_runtime := runtime cache $(needs_cuda)
needs_cli     := cli $(needs_runtime)
needs_core    := core channel

include kernels/cuda/build.mk

libs_of = $(foreach l,$(needs_$(1)),$(call lib,$(l)))

all: engine module

engine: $(B)/vlm-engine

$(B)/vlm-engine: $(B)/engine/main.o $(call libs_of,cli)
	$(LINK) -o $@ $^ $(LIBS)

# gcc follows variables through the checked lanes of kernels/ for minutes
no_tracking := $(if $(findstring clang,$(CC)),,-fno-var-tracking-assignments)

# instruction sets: one file each over shared logic, empty on other machines

ifeq ($(shell uname -m),x86_64)
$(B)/kernels/cpu/%_avx2.o: ISA := -mavx2 -mfma -mf16c
$(B)/kernels/cpu/%_avx512.o: ISA := -mavx512f -mavx512bw -mavx512vl \
    -mavx512dq -mfma -mf16c -mprefer-vector-width=512
$(B)/kernels/cpu/%_vnni.o: ISA := -mavx512f -mavx512bw -mavx512vl \
    -mavx512dq -mavx512vnni -mfma -mf16c -mprefer-vector-width=512
endif

$(B)/kernels/%.o: OPT := $(if $(SANFLAGS),$(OPT) $(no_tracking),-O3)

$(B)/%.o: %.c
	@mkdir -p $(dir $@)
	$(CC) $(ALL_CFLAGS) $(ISA) -c -o $@ $<

# t/unit/COMPONENT_NAME.c links its component and what that needs

units := $(addprefix $(B)/t/unit/,$(basename $(notdir \
    $(wildcard t/unit/*.c t/unit/*.cu))))

.SECONDEXPANSION:
$(B)/t/unit/%: $(B)/t/unit/%.o $(call lib,testlib) \
        $$(call libs_of,$$(firstword $$(subst _, ,$$(notdir $$@))))
	$(LINK) -o $@ $^ $(LIBS) $(TEST_LIBS)

fake_obj := $(patsubst %.c,$(B)/%.o,$(wildcard t/engine/*.c))

$(B)/fake_engine: $(fake_obj) $(call lib,channel)
	$(LINK) -o $@ $^ -lcrypto -pthread

test-bins: $(units) $(B)/fake_engine

# what several threads run through, for TSAN=1

threaded := channel_threads kernels_pool kernels_attn kernels_i8 text_tokenizer \
    runtime_server runtime_loading cli_soak cuda_memory \
    $(patsubst t/unit/%.c,%,$(wildcard t/unit/cache_*.c))

threaded-bins: $(threaded:%=$(B)/t/unit/%)

# compressed test data, once for all variants

DATA := build-data/images_rgb/info.json build-data/qwen3/tokenizer.json \
        build-data/qwen3/cases.jsonl build-data/llama3/tokenizer.json \
        build-data/llama3/cases.jsonl

data: $(DATA)

build-data/images_rgb/info.json: t/data/images_rgb.tar.xz
	@mkdir -p build-data
	tar -C build-data -xJmf $<

build-data/qwen3/%: t/data/qwen3-%.xz
	@mkdir -p $(dir $@)
	xz -dc $< > $@

build-data/llama3/%: t/data/llama3-%.xz
	@mkdir -p $(dir $@)
	xz -dc $< > $@

# fuzz targets: t/fuzz/COMPONENT_NAME.c, built whole with the fuzzer's
# instrumentation

FUZZ_FLAGS := -g -O1 -fsanitize=fuzzer,address,undefined \
              -fno-sanitize-recover=undefined -fno-omit-frame-pointer
fuzzers := $(patsubst t/fuzz/%.c,build-fuzz/%,$(wildcard t/fuzz/*.c))

fuzz: $(fuzzers)

# (kernels, each with flags of its own, are reached through a table only)

fuzz_src = $(foreach l,$(filter-out kernels,\
    $(needs_$(firstword $(subst _, ,$(1))))),$($(l)_src))

build-fuzz/%: t/fuzz/%.c $(wildcard t/fuzz/*.h) $$(call fuzz_src,$$*)
	@mkdir -p $(dir $@)
	clang -std=c11 -D_GNU_SOURCE -DVLM_FUZZ -I. $(WARN) $(FUZZ_FLAGS) \
	    $(shell pkg-config --cflags $(PKGS)) -pthread -o $@ \
	    $< $(call fuzz_src,$*) $(LIBS)

# benchmarks: bench/NAME.c

benches := $(patsubst bench/%.c,$(B)/bench/%,$(wildcard bench/*.c))

bench: $(benches)

# (bench/gpu packs libraries)
$(B)/bench/bench_gpu: LINK += -Wl,-rpath,'$$ORIGIN/../../lib'

$(B)/bench/%: $(B)/bench/%.o $(call libs_of,runtime)
	$(LINK) -o $@ $^ $(LIBS)

# the module, built against the headers of Debian's nginx-dev

module_dep := config $(wildcard ngx_vlm_module/*.[ch] \
    ngx_vlm_module/core/*.[ch] engine/channel/*.[ch])

module: $(B)/ngx_http_vlm_module.so

$(B)/ngx_http_vlm_module.so: $(module_dep) tools/build-module
	@mkdir -p $(B)
	tools/build-module $(B)

# DESTDIR is put before every path, PREFIX into the installed configuration;
# NGINX_MODULES is where this machine's nginx looks for modules

PREFIX   ?= /usr/local
SBINDIR  ?= $(PREFIX)/sbin
DATADIR  ?= $(PREFIX)/share/ngx_vlm
DOCDIR   ?= $(PREFIX)/share/doc/ngx_vlm
UNITDIR  ?= $(PREFIX)/lib/systemd/system
USERSDIR ?= $(PREFIX)/lib/sysusers.d
NGINX    ?= $(firstword $(wildcard /usr/sbin/nginx) nginx)
NGINX_MODULES ?= $(or $(shell $(NGINX) -V 2>&1 | tr ' ' '\n' \
    | sed -n 's/^--modules-path=//p'),/usr/lib/nginx/modules)

DEMO := $(wildcard models/demo/*)

install: engine module
	install -d $(addprefix $(DESTDIR),$(SBINDIR) $(NGINX_MODULES) \
	    $(DATADIR)/conf $(DATADIR)/models/demo $(DOCDIR) $(UNITDIR) \
	    $(USERSDIR))
	install -m 755 $(B)/vlm-engine $(DESTDIR)$(SBINDIR)
	install -m 644 $(B)/ngx_http_vlm_module.so $(DESTDIR)$(NGINX_MODULES)
	install -m 644 conf/index.html $(DESTDIR)$(DATADIR)
	install -m 644 conf/*.conf conf/*.env $(DESTDIR)$(DATADIR)/conf
	install -m 644 $(DEMO) $(DESTDIR)$(DATADIR)/models/demo
	install -m 644 README.md LICENSE docs/*.md $(DESTDIR)$(DOCDIR)
	install -m 644 conf/vlm-engine@.service $(DESTDIR)$(UNITDIR)
	install -m 644 conf/vlm.sysusers $(DESTDIR)$(USERSDIR)/vlm.conf
	sed -i -e 's|/usr/local/sbin|$(SBINDIR)|' \
	    -e 's|/usr/local/share/ngx_vlm|$(DATADIR)|' \
	    $(DESTDIR)$(UNITDIR)/vlm-engine@.service \
	    $(DESTDIR)$(DATADIR)/conf/*

clean:
	rm -rf build build-*

.PHONY: all engine module test-bins threaded-bins data fuzz bench install clean
.SECONDARY:

-include $(shell find $(B) -name '*.d' 2>/dev/null)
