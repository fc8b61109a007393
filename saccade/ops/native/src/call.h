// What crosses the border between Python and the kernels, and the only place that says it: Python
// reads this file (native/header.py knows which C++ may stand here), and compares what the compiler
// made of it when it loads the library.
#pragma once
#include <cstdint>

namespace saccade {

enum Type : int32_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT64 = 2 };

// What a call returns.
enum Result : int32_t { DONE = 0, NO_MEMORY = 1, OTHER_SIZE = 2, OUT_OF_LIMITS = 3 };

// What the kernels take; check.h refuses the rest.
constexpr int SASA_LEAST_WINDOW = 3, SASA_WINDOW = 15;  // odd
constexpr int SASA_HEAD_WIDTH = 128;
constexpr int QNA_WINDOW = 15;
constexpr int BLOCK_SIDE = 4;          // pixels
constexpr int BLOCK_INPUTS = 64;       // channels of the image
constexpr int BLOCK_WIDTH_STEP = 16;   // head widths are multiples of it
constexpr int FEED_HIDDEN_STEP = 16;   // so are hidden channels of this, and those of moments
constexpr int MOMENT_SUMS = 38;

// Four axes (batch, channel, row, column) in any order in memory; strides in elements.
// For an absent tensor, data is null.
struct Map {
  void* data;
  int64_t batch, channel, row, column;
};

// Local attention of every pixel over the window x window pixels around it.
struct Sasa {
  int32_t type, threads;
  int32_t B, heads, d, H, W, window;
  int32_t mask;    // 1: pixels outside are left out; 0: they count with k = v = 0
  int32_t tables;  // how many row/column tables there are: 1 (shared) or heads
  Map q, k, v;
  const void *row, *col;  // tables x window x d/2, contiguous, of the accumulating type
  Map out;                // forward
  Map gout, dq, dk, dv;   // backward
  void *drow, *dcol;      // as row and col
};

// Aggregation over strided windows by L learned queries a head. Channels: l * heads + head of s,
// head * d + c of v; (l * heads + head) * d + c of out if the queries are kept apart, else as v.
struct Qna {
  int32_t type, threads;
  int32_t B, heads, d, queries, H, W, Ho, Wo, window, stride, padding;
  int32_t fold;  // 1: the queries are summed
  Map s, v;
  const void *bias, *weight;  // window * window x queries * heads, of the accumulating type
  Map out;                    // forward; backward, what forward gave, if it is at hand
  Map gout, ds, dv;           // backward
  void *dbias, *dweight;
};

// Key-only attention's summary of each image. All dense and in fp32.
struct Summary {
  int32_t threads, B, tokens, C, heads;
  int32_t add;           // 1: dx is added to what is there
  const float *x, *ask;  // B tokens C; heads C
  float *mean, *lse;     // B heads C; B heads
  // backward
  const float *dmean, *delta;  // B heads C; dmean . mean
  float *dx, *dask;
};

// Pixels times a matrix, one for all images or one each. In fp32, and dense but for the matrices.
struct Linear {
  int32_t threads, batches, rows, inputs, outputs;
  const float* x;  // batches rows inputs
  const float* w;  // strides in elements; those of batches are 0 if all share one
  int64_t w_batch, w_output, w_input;
  const float* b;  // or null
  int64_t b_batch;
  float* y;         // batches rows outputs; backward, their gradient
  float *dw, *db;   // batches outputs inputs; batches outputs, or null. Added to what is there
  // forward
  const float* packed;  // w and b of one for all as `saccade_linear_pack` lays them out, or null
  const float* skip;    // batches rows outputs: added to y; or null
  int32_t relu;         // 1: y is nowhere below 0
  int32_t half;         // 1: products of bfloat16, with sums in fp32, where the processor has them
};

// Two linear layers for every pixel, between them GELU and, before it, a depth-wise 3x3. In fp32 and
// dense. Without a 3x3 all pixels may be one column: W = 1. Without w1 and b1, x is h. Forward, with
// a norm: w1 reads the LayerNorm of x, and x is added to y.
struct Feed {
  int32_t threads, B, H, W, inputs, hidden, outputs;  // hidden: in FEED_HIDDEN_STEPs
  int32_t tanh;                                       // GELU's form
  const float *x, *w1, *b1;     // B H W inputs; hidden inputs; hidden
  const float *scale, *offset, *eps;  // of the norm: inputs; inputs; one number. All null: none
  const float* packed;          // forward: w1, b1, w2 and b2 as `saccade_feed_pack` lays them out, or null
  const float *taps, *shift;    // 3 3 hidden; hidden. Both null: no 3x3
  const float *w2, *b2;         // outputs hidden; outputs
  float *h;                     // B H W hidden: what w1 and b1 give; forward, null if not to be kept
  float *y;                     // B H W outputs
  // backward; all but dx are added to what is there
  const float* g;
  float *dx, *dw1, *db1, *dtaps, *dshift, *dw2, *db2;
  int32_t half;  // forward: as in Linear
};

// LayerNorm of every pixel, for inference; see norm.h. In fp32, dense.
struct LayerNorm {
  int32_t threads, rows, C;
  const float *x, *scale, *offset, *eps;  // rows C; C; C; one number
  float* y;                               // rows C
};

// Key-only attention for inference: y = x + attention(LayerNorm of x), of weights that are multiplied
// with each other beforehand; see key_only.h. In fp32, dense.
struct KeyOnly {
  int32_t threads, B, tokens, C, heads;
  int32_t collapsed;                  // 1: one matrix for each image; 0: three for all
  const float* x;                     // B tokens C
  const float *scale, *offset, *eps;  // of the norm: C; C; one number
  const float *ask, *wk, *bk;         // heads C; C C; C
  const float *wv, *bv, *p, *q, *c;   // C C; C; C C; C C; C
  const float* packed;                // wv, bv, p, q, c as `saccade_key_only_pack` lays them out
  float* y;                           // B tokens C
  int32_t half;                       // as in Linear
};

// A convolution with what follows it, for inference; see convolution.h. In fp32, dense but for x.
struct Convolution {
  int32_t threads, B, H, W, inputs, outputs;
  int32_t kernel, stride, padding;
  int32_t mean;           // 1: kernel 1 and no padding; the mean of stride x stride (1 or 2) pixels,
                          // plus shift, and nowhere below 0, stands for each
  int32_t relu, half;     // as in Linear
  Map x;                  // with `mean`, its channels are neighbours
  const float* shift;     // inputs; or null
  const float* packed;    // as Linear's, of kernel kernel inputs
  const float* skip;      // B Ho Wo outputs: added to y; or null
  const float *scale, *offset, *eps;  // of a LayerNorm of y: outputs; outputs; one number. Or all null
  float* y;               // B Ho Wo outputs
};

// Attention inside windows of h x w pixels, for inference; see windows.h. In fp32, dense.
struct Windows {
  int32_t threads, B, H, W, C, heads, h, w;
  int32_t half;       // as in Linear
  const float* qkv;   // B H W 3C
  const float* bias;  // heads (h w) (h w)
  float* y;           // B H W C
};

// Sums from which the moments of all 3x3 windows of a map follow; see moments.h. Dense, fp32.
struct Moments {
  int32_t threads, B, H, W, C;  // C: in FEED_HIDDEN_STEPs
  const float* h;               // B H W C
  double* sums;                 // MOMENT_SUMS C; added to what is there
  const float* dsums;           // backward
  float* dh;                    // added to what is there
};

// Depth-wise 3x3 branches, normalised by a map's moments, as one 3x3; see branches.h. Dense.
struct Branches {
  int32_t C, branches, pixels;  // C: in FEED_HIDDEN_STEPs; pixels: of all images
  int32_t skip;                 // 1: the map itself is one more branch
  const double* sums;           // MOMENT_SUMS C
  const float *k, *gamma, *beta, *eps;  // branches 9 C; branches C; branches C; one number
  float *taps, *shift;          // 9 C; C
  float *mean, *var;            // branches C
  // backward
  const float *dtaps, *dshift;
  float *dk, *dgamma, *dbeta, *dsums;
};

// Attention inside blocks of 4 x 4 pixels, with its projections. In fp32; dense but for x.
struct Block {
  int32_t threads, B, H, W, inputs, outputs, heads;  // outputs / heads: in BLOCK_WIDTH_STEPs
  int32_t mask;                // 1: pixels outside are left out; 0: they count with k = v = 0
  Map x;
  const float *wq, *wk, *wv;   // outputs inputs; the last, one for each of 16 places
  const float *row, *col;      // 7 d/2; both null: no positions
  const float *scale, *shift;  // outputs. With them, y is the maximum of y scale + shift in a block
  float* y;                    // B H W outputs, or one for each block
  const float* g;              // backward
  float *dx, *dwq, *dwk, *dwv, *drow, *dcol;  // dx: B inputs H W
};

}  // namespace saccade
