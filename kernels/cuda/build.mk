# The CUDA device: by nvcc where there is one, in build-cuda/ once for all
# variants, and by the host's C++ compiler over kernels/emu for tests.
#
# NVCC=PATH    another nvcc;  CUDA=0  none: the device says that it is missing

CUDA_ARCHS ?= 80 89 90

ifneq ($(CUDA),0)
NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) \
    $(wildcard /usr/local/cuda/bin/nvcc build-nvcc/cuda/bin/nvcc))
NVCC := $(NVCC)
endif

# sanitized variants test the sources on the host

ifneq ($(SANFLAGS),)
override NVCC :=
endif

# the compiler alone is not enough

ifneq ($(NVCC),)

CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))

CUDART := $(firstword $(wildcard $(foreach d,lib64 lib \
    targets/x86_64-linux/lib lib/x86_64-linux-gnu,\
    $(CUDA_HOME)/$(d)/libcudart_static.a)))

ifeq ($(and $(CUDART),$(wildcard $(CUDA_HOME)/include/cublasLt.h)),)
$(warning $(NVCC) without cublasLt.h or libcudart_static.a: no CUDA)
override NVCC :=
endif

endif

cuda_cu := $(wildcard kernels/cuda/*.cu)

# ---- the host's variant ----

CXX := $(if $(findstring clang,$(CC)),$(patsubst clang%,clang++%,$(CC)),g++)

CXX_FLAGS = -x c++ -std=c++14 -fno-exceptions -fno-rtti -D_GNU_SOURCE \
    -DVLM_EMU -I. $(OPT) -Wall -Wextra -Werror -Wno-unused-parameter $(FP) \
    $(CFLAGS) $(SANFLAGS) -pthread -MMD -MP

# (gemm.cu takes the library's place)

emu_obj := $(patsubst %.c,$(B)/%.o,$(wildcard kernels/emu/*.c)) \
    $(patsubst %.cu,$(B)/kernels/emu/%.o,gemm.cu $(filter-out cublas.cu,\
    $(notdir $(cuda_cu))))

$(B)/kernels/emu/gemm.o: kernels/emu/gemm.cu
	@mkdir -p $(dir $@)
	$(CXX) $(CXX_FLAGS) -c -o $@ $<

$(B)/kernels/emu/%.o: kernels/cuda/%.cu
	@mkdir -p $(dir $@)
	$(CXX) $(CXX_FLAGS) -c -o $@ $<

# a unit test with kernels of its own

$(B)/t/unit/%.o: t/unit/%.cu
	@mkdir -p $(dir $@)
	$(CXX) $(CXX_FLAGS) -c -o $@ $<

# ---- nvcc's ----

ifneq ($(NVCC),)

cuda_gencode := $(foreach a,$(CUDA_ARCHS),-gencode \
    arch=compute_$(a),code=sm_$(a)) -gencode \
    arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword \
    $(CUDA_ARCHS))

NVCC_FLAGS = -std=c++14 -O3 -D_GNU_SOURCE -I. $(cuda_gencode) --threads 2 \
    -Xptxas -v -Xcompiler \
    -Wall,-Wextra,-Wno-unused-parameter,-O2,-g,-fno-exceptions \
    -Xcompiler -fno-threadsafe-statics -MMD -MP \
    -Wno-deprecated-gpu-targets

cuda_obj := $(patsubst %.cu,build-cuda/%.o,$(cuda_cu))

LIBS += -Wl,-rpath,'$$ORIGIN' $(CUDART) -ldl -lrt

# powers of 2 without steps for results below 2^-126

build-cuda/kernels/cuda/attention_prefill.o \
build-cuda/kernels/cuda/vision_attention.o: NVCC_FLAGS += -ftz=true

# what ptxas says of each kernel stays beside the object

build-cuda/%.o: %.cu
	@mkdir -p $(dir $@)
	$(NVCC) $(NVCC_FLAGS) -c -o $@ $< 2> $(@:.o=.log) \
	    || { cat $(@:.o=.log) >&2; rm -f $@; exit 1; }

-include $(shell find build-cuda -name '*.d' 2>/dev/null)

else

cuda_obj := $(B)/kernels/cuda/none.o
LIBS += -ldl

endif

# made again when nvcc has come or gone

cuda_stamp := $(B)/cuda-$(if $(NVCC),nvcc,none)

$(cuda_stamp):
	@mkdir -p $(B)
	@rm -f $(B)/cuda-*
	@touch $@

$(call lib,cuda): $(emu_obj) $(cuda_obj) $(cuda_stamp)
	@rm -f $@
	@ar rcs $@ $(filter %.o,$^)
