/* JPEG decoding over libjpeg-turbo's libjpeg interface: decode a region, report errors as codes, and decode
 * baseline Huffman data faster than the library does.
 *
 * Entropy decoding is about two thirds of the time that a photograph takes. The library looks up a code, then
 * reads the coefficient's bits; here one look-up of TABLE_BITS bits gives run, value and length of most
 * coefficients at once, and the bit buffer is refilled eight bytes at a time. `decode_mcu` stands in for the
 * library's function and keeps its state in the library's own fields, so that any unit it does not want (near
 * the end of the data, at a marker, with restart intervals) is simply left to the original.
 *
 * C and not Rust, because errors leave the library by longjmp and because the structs are C's. */

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

#define TABLE_BITS 10
/* Bytes that one block can take at most: 64 codes and values of 31 bits, every byte stuffed; and what a refill
 * may read ahead of them. */
#define BLOCK_BYTES 496
#define AHEAD_BYTES 32
#define BLOCKS D_MAX_BLOCKS_IN_MCU

/* What the caller is told. */
enum { FB_OK = 0, FB_TRUNCATED = 1, FB_CORRUPT = 2, FB_NOT_JPEG = 3, FB_MEMORY = 4 };

/* The head of the library's Huffman decoder. It is private, so the version is pinned: another one decodes
 * with its own function. */
#if defined(LIBJPEG_TURBO_VERSION_NUMBER) && LIBJPEG_TURBO_VERSION_NUMBER / 1000 == 3001 && SIZE_MAX == UINT64_MAX
#define FB_FAST 1
struct jpeg_entropy_decoder {
  void (*start_pass)(j_decompress_ptr);
  boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW *);
  JDIMENSION (*decode_mcus)(j_decompress_ptr, void *, JDIMENSION, JDIMENSION, JDIMENSION);
  boolean (*process_restart)(j_decompress_ptr);
  boolean insufficient_data;
};
struct huffman {
  struct jpeg_entropy_decoder pub;
  struct {
    size_t get_buffer;
    int bits_left;
  } bitstate;
  struct {
    int last_dc_val[MAX_COMPS_IN_SCAN];
  } saved;
};
#else
#define FB_FAST 0
#endif

/* One look-up: bits used (0: the code alone does not fit), zeroes before the coefficient, its value; for a
 * code that fits but whose value does not: bits of the code, symbol. */
struct entry {
  uint8_t length, run;
  int16_t value;
};
struct table {
  UINT8 bits[17], huffval[256];
  struct entry entries[1 << TABLE_BITS];
  uint16_t symbols[1 << TABLE_BITS]; /* code length << 8 | symbol; 0: longer than the table */
  int32_t maxcode[18], offset[17];
};

struct fb_jpeg {
  struct jpeg_decompress_struct info;
  struct jpeg_error_mgr error;
  struct jpeg_progress_mgr progress;
  jmp_buf escape;
  char message[JMSG_LENGTH_MAX];
  int code, truncated, scan_limit;
#if FB_FAST
  boolean (*original)(j_decompress_ptr, JBLOCKROW *);
  struct table *dc[BLOCKS], *ac[BLOCKS];
  int component[BLOCKS];
#endif
  struct table tables[2 * NUM_HUFF_TBLS];
};

/* Zigzag to natural order, with room for a run that leaves the block: it writes a zero to the last place,
 * which is still zero then. */
static const uint8_t natural[64 + 64] = {
  0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
  35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
  63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63,
  63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63,
};

static void leave(j_common_ptr common) {
  struct fb_jpeg *self = common->client_data;
  common->err->format_message(common, self->message);
  int code = common->err->msg_code;
  self->code = code == JERR_NO_SOI ? FB_NOT_JPEG
             : code == JERR_INPUT_EOF || code == JERR_INPUT_EMPTY ? FB_TRUNCATED
             : code == JERR_OUT_OF_MEMORY || code == JERR_NO_BACKING_STORE ? FB_MEMORY
             : FB_CORRUPT;
  longjmp(self->escape, 1);
}

/* Warnings are passed over, as Pillow does; an early end is not. */
static void warn(j_common_ptr common, int level) {
  struct fb_jpeg *self = common->client_data;
  if (level < 0 && common->err->msg_code == JWRN_JPEG_EOF) self->truncated = 1;
}

static void watch_scans(j_common_ptr common) {
  struct fb_jpeg *self = common->client_data;
  if (common->is_decompressor && ((j_decompress_ptr)common)->input_scan_number > self->scan_limit) {
    snprintf(self->message, sizeof self->message, "more than %d scans", self->scan_limit);
    self->code = FB_CORRUPT;
    longjmp(self->escape, 1);
  }
}

#if FB_FAST
static int extend(int bits, int size) {
  return bits < 1 << (size - 1) ? bits - (1 << size) + 1 : bits;
}

/* Derives the look-ups of one Huffman table, which the library has checked; most files share theirs. */
static void derive(struct table *table, const JHUFF_TBL *from, int is_dc) {
  if (memcmp(table->bits, from->bits, sizeof table->bits) == 0 &&
      memcmp(table->huffval, from->huffval, sizeof table->huffval) == 0)
    return;
  memcpy(table->bits, from->bits, sizeof table->bits);
  memcpy(table->huffval, from->huffval, sizeof table->huffval);
  memset(table->entries, 0, sizeof table->entries);
  memset(table->symbols, 0, sizeof table->symbols);
  int32_t code = 0;
  int at = 0;
  for (int length = 1; length <= 16; length++, code <<= 1) {
    int count = from->bits[length];
    table->offset[length] = at - code;
    table->maxcode[length] = count ? code + count - 1 : -1;
    for (int i = 0; i < count && at < 256; i++, at++, code++) {
      if (length > TABLE_BITS) continue;
      int symbol = from->huffval[at], size = symbol & 15, run = symbol >> 4;
      int spare = TABLE_BITS - length;
      for (int rest = 0; rest < 1 << spare; rest++) {
        int index = code << spare | rest;
        table->symbols[index] = (uint16_t)(length << 8 | symbol);
        struct entry *entry = &table->entries[index];
        if (size > spare) continue;
        entry->length = (uint8_t)(length + size);
        if (size) {
          entry->run = (uint8_t)run;
          entry->value = (int16_t)extend(rest >> (spare - size), size);
        } else {
          /* A run of sixteen zeroes, or the end of the block. */
          entry->run = is_dc ? 0 : run == 15 ? 15 : 64;
        }
      }
    }
  }
  table->maxcode[17] = INT32_MAX;
}

#define REFILL                                                                                            \
  if (bits < 32) {                                                                                        \
    uint64_t next;                                                                                        \
    memcpy(&next, at, 8);                                                                                 \
    next = __builtin_bswap64(next);                                                                       \
    /* No byte is 0xff: none needs to be looked at. */                                                    \
    if (!((~next - 0x0101010101010101) & next & 0x8080808080808080)) {                                    \
      /* Bits of a byte that is not taken yet may come along: they are the same when it is. */            \
      buffer |= next >> bits;                                                                             \
      int taken = (63 - bits) >> 3;                                                                       \
      at += taken;                                                                                        \
      bits += taken * 8;                                                                                  \
    } else {                                                                                              \
      while (bits <= 48) {                                                                                \
        uint64_t byte = *at++;                                                                            \
        if (byte == 0xff && *at++ != 0) goto leave_it; /* a marker */                                     \
        buffer |= byte << (56 - bits);                                                                    \
        bits += 8;                                                                                        \
      }                                                                                                   \
    }                                                                                                     \
  }

#define DROP(n) (buffer <<= (n), bits -= (n))
#define PEEK(n) (buffer >> (64 - (n)))

/* A code longer than the table, or whose value is: the symbol, with its code dropped; -1 if there is none. */
#define SYMBOL(table, symbol)                                                                             \
  {                                                                                                       \
    int known = (table)->symbols[PEEK(TABLE_BITS)];                                                       \
    if (known) {                                                                                          \
      DROP(known >> 8);                                                                                   \
      symbol = known & 255;                                                                               \
    } else {                                                                                              \
      int length = TABLE_BITS + 1;                                                                        \
      while (length <= 16 && (int32_t)PEEK(length) > (table)->maxcode[length]) length++;                  \
      if (length > 16) goto leave_it;                                                                     \
      symbol = (table)->huffval[((int32_t)PEEK(length) + (table)->offset[length]) & 255];                 \
      DROP(length);                                                                                       \
    }                                                                                                     \
  }

static boolean decode_mcu(j_decompress_ptr info, JBLOCKROW *blocks) {
  struct fb_jpeg *self = info->client_data;
  struct huffman *state = (struct huffman *)info->entropy;
  int count = info->blocks_in_MCU;
  if (info->src->bytes_in_buffer < (size_t)(BLOCK_BYTES * count + AHEAD_BYTES) || info->unread_marker != 0 ||
      state->pub.insufficient_data)
    return self->original(info, blocks);

  const uint8_t *at = info->src->next_input_byte;
  int bits = state->bitstate.bits_left;
  uint64_t buffer = bits > 0 ? (uint64_t)state->bitstate.get_buffer << (64 - bits) : 0;
  int predicted[MAX_COMPS_IN_SCAN];
  memcpy(predicted, state->saved.last_dc_val, sizeof predicted);

  for (int i = 0; i < count; i++) {
    const struct table *dc = self->dc[i], *ac = self->ac[i];
    int value;
    REFILL
    struct entry entry = dc->entries[PEEK(TABLE_BITS)];
    if (entry.length) {
      DROP(entry.length);
      value = entry.value;
    } else {
      int size;
      SYMBOL(dc, size)
      if (size > 15) goto leave_it;
      value = size ? extend((int)PEEK(size), size) : 0;
      if (size) DROP(size);
    }
    /* Wraps as the library's does. */
    value = predicted[self->component[i]] = (int)((unsigned)value + (unsigned)predicted[self->component[i]]);

    if (!blocks) {
      for (int k = 1; k < 64; k++) {
        REFILL
        struct entry entry = ac->entries[PEEK(TABLE_BITS)];
        if (entry.length) {
          DROP(entry.length);
          k += entry.run;
          continue;
        }
        int symbol;
        SYMBOL(ac, symbol)
        int size = symbol & 15;
        if (size) DROP(size);
        k += size || symbol == 0xf0 ? symbol >> 4 : 64;
      }
      continue;
    }
    JCOEF *block = *blocks[i];
    block[0] = (JCOEF)value;
    for (int k = 1; k < 64; k++) {
      REFILL
      struct entry entry = ac->entries[PEEK(TABLE_BITS)];
      if (entry.length) {
        DROP(entry.length);
        k += entry.run;
        block[natural[k]] = entry.value;
        continue;
      }
      int symbol;
      SYMBOL(ac, symbol)
      int size = symbol & 15;
      if (size) {
        k += symbol >> 4;
        block[natural[k]] = (JCOEF)extend((int)PEEK(size), size);
        DROP(size);
      } else {
        k += symbol == 0xf0 ? 15 : 64;
      }
    }
  }

  info->src->bytes_in_buffer -= (size_t)(at - info->src->next_input_byte);
  info->src->next_input_byte = at;
  state->bitstate.bits_left = bits;
  state->bitstate.get_buffer = bits > 0 ? buffer >> (64 - bits) : 0;
  memcpy(state->saved.last_dc_val, predicted, sizeof predicted);
  return TRUE;

leave_it:
  /* Nothing was kept: the original starts this unit anew. */
  if (blocks)
    for (int i = 0; i < count; i++) memset(blocks[i], 0, sizeof(JBLOCK));
  return self->original(info, blocks);
}

static void take_over(struct fb_jpeg *self) {
  struct jpeg_decompress_struct *info = &self->info;
  if (info->progressive_mode || info->arith_code || info->restart_interval || info->data_precision != 8 ||
      jpeg_has_multiple_scans(info))
    return;
  for (int i = 0; i < info->blocks_in_MCU; i++) {
    int component = info->MCU_membership[i];
    const jpeg_component_info *about = info->cur_comp_info[component];
    /* Tables are checked only for the kinds of files that use them. */
    if (about->dc_tbl_no < 0 || about->dc_tbl_no >= NUM_HUFF_TBLS || !info->dc_huff_tbl_ptrs[about->dc_tbl_no] ||
        about->ac_tbl_no < 0 || about->ac_tbl_no >= NUM_HUFF_TBLS || !info->ac_huff_tbl_ptrs[about->ac_tbl_no])
      return;
    self->component[i] = component;
    self->dc[i] = &self->tables[about->dc_tbl_no];
    self->ac[i] = &self->tables[NUM_HUFF_TBLS + about->ac_tbl_no];
    derive(self->dc[i], info->dc_huff_tbl_ptrs[about->dc_tbl_no], 1);
    derive(self->ac[i], info->ac_huff_tbl_ptrs[about->ac_tbl_no], 0);
  }
  self->original = info->entropy->decode_mcu;
  info->entropy->decode_mcu = decode_mcu;
}
#endif

struct fb_jpeg *fb_jpeg_new(int scan_limit) {
  struct fb_jpeg *volatile self = calloc(1, sizeof *self);
  if (!self) return NULL;
  self->info.err = jpeg_std_error(&self->error);
  self->error.error_exit = leave;
  self->error.emit_message = warn;
  self->scan_limit = scan_limit;
  self->progress.progress_monitor = watch_scans;
  self->info.client_data = self;
  if (setjmp(self->escape)) {
    free(self);
    return NULL;
  }
  jpeg_create_decompress(&self->info);
  return self;
}

void fb_jpeg_free(struct fb_jpeg *self) {
  jpeg_destroy_decompress(&self->info);
  free(self);
}

const char *fb_jpeg_message(const struct fb_jpeg *self) { return self->message; }

/* How many pixels a chroma sample stands for, across in the upper bits and down in the lower two; 0 if the planes
 * are not luma and two of chroma, or of a layout whose upsampling we do not repeat. */
static uint32_t layout(const struct jpeg_decompress_struct *info) {
  const jpeg_component_info *about = info->comp_info;
  if (info->num_components != 3 || info->jpeg_color_space != JCS_YCbCr || info->data_precision != 8) return 0;
  for (int i = 1; i < 3; i++)
    if (about[i].h_samp_factor != 1 || about[i].v_samp_factor != 1) return 0;
  if (about->h_samp_factor > 2 || about->v_samp_factor > 2) return 0;
  return (uint32_t)(about->h_samp_factor << 2 | about->v_samp_factor);
}

/* Reads the header: width, height, components, bits per channel, the width of a unit in pixels, 0 if the
 * layout cannot be cut, and the layout of the planes. */
int fb_jpeg_header(struct fb_jpeg *self, const uint8_t *bytes, size_t length, uint32_t about[6]) {
  struct jpeg_decompress_struct *info = &self->info;
  self->truncated = 0;
  if (setjmp(self->escape)) {
    jpeg_abort_decompress(info);
    return self->code;
  }
  /* A new object for each image: an old one would lend its tables to a file that lacks them. */
  jpeg_destroy_decompress(info);
  jpeg_create_decompress(info);
  info->progress = &self->progress;
  jpeg_mem_src(info, bytes, length);
  jpeg_read_header(info, TRUE);
  int widest = 1;
  for (int i = 0; i < info->num_components; i++)
    if (info->comp_info[i].h_samp_factor > widest) widest = info->comp_info[i].h_samp_factor;
  int cuttable = info->num_components == 1 || info->num_components == 3;
  about[0] = info->image_width;
  about[1] = info->image_height;
  about[2] = (uint32_t)info->num_components;
  about[3] = (uint32_t)info->data_precision;
  /* A single component is never interleaved: its unit is one block, whatever its factors say. */
  about[4] = !cuttable ? 0 : info->num_components == 1 ? 8 : (uint32_t)widest * 8;
  about[5] = layout(info);
  return self->truncated ? FB_TRUNCATED : FB_OK;
}

/* Whole and scaled images, pixels and planes are decoded with the same settings. */
static void start(struct fb_jpeg *self, uint32_t denominator, uint64_t memory, boolean raw) {
  struct jpeg_decompress_struct *info = &self->info;
  info->mem->max_memory_to_use = memory > INT32_MAX ? INT32_MAX : (long)memory;
  info->out_color_space = info->num_components == 4 ? JCS_CMYK : JCS_RGB;
  info->scale_num = 1;
  info->scale_denom = denominator;
  info->dct_method = JDCT_ISLOW;
  info->do_fancy_upsampling = TRUE;
  info->raw_data_out = raw;
  jpeg_start_decompress(info);
}

/* Decodes a region of the image whose header was read last, at 1/denominator, to RGB or (four components) CMYK
 * rows. `fast` says whether our own Huffman decoder may take part. */
int fb_jpeg_decode(struct fb_jpeg *self, uint32_t denominator, uint32_t x, uint32_t y, uint32_t width,
                   uint32_t height, uint64_t memory, int fast, uint8_t *out) {
  struct jpeg_decompress_struct *info = &self->info;
  if (setjmp(self->escape)) {
    jpeg_abort_decompress(info);
    return self->code;
  }
  start(self, denominator, memory, FALSE);
  JDIMENSION from = x, across = width;
  if (from != 0 || across != info->output_width) jpeg_crop_scanline(info, &from, &across);
  if (from != x || across != width || y + height > info->output_height) {
    snprintf(self->message, sizeof self->message, "the region does not fit the image");
    jpeg_abort_decompress(info);
    return FB_CORRUPT;
  }
#if FB_FAST
  if (fast) take_over(self);
#else
  (void)fast;
#endif
  if (y) jpeg_skip_scanlines(info, y);
  size_t pitch = (size_t)width * (size_t)info->output_components;
  while (info->output_scanline < y + height) {
    JSAMPROW rows[8];
    JDIMENSION left = y + height - info->output_scanline, count = left < 8 ? left : 8;
    for (JDIMENSION i = 0; i < count; i++) rows[i] = out + (info->output_scanline - y + i) * pitch;
    jpeg_read_scanlines(info, rows, count);
  }
  /* What lies below is not needed. */
  jpeg_abort_decompress(info);
  return self->truncated ? FB_TRUNCATED : FB_OK;
}

/* Decodes the image whose header was read last to its three planes, rows without gaps: what the library would
 * upsample and convert. */
int fb_jpeg_planes(struct fb_jpeg *self, uint64_t memory, int fast, uint8_t *const out[3]) {
  struct jpeg_decompress_struct *info = &self->info;
  if (setjmp(self->escape)) {
    jpeg_abort_decompress(info);
    return self->code;
  }
  start(self, 1, memory, TRUE);
#if FB_FAST
  if (fast) take_over(self);
#else
  (void)fast;
#endif
  /* The library writes whole blocks, which reach beyond the image. */
  JSAMPARRAY rows[3];
  for (int i = 0; i < 3; i++) {
    const jpeg_component_info *about = &info->comp_info[i];
    rows[i] = info->mem->alloc_sarray((j_common_ptr)info, JPOOL_IMAGE, about->width_in_blocks * DCTSIZE,
                                      (JDIMENSION)about->v_samp_factor * DCTSIZE);
  }
  JDIMENSION unit = (JDIMENSION)info->max_v_samp_factor * DCTSIZE;
  for (JDIMENSION done = 0; info->output_scanline < info->output_height; done++) {
    jpeg_read_raw_data(info, rows, unit);
    for (int i = 0; i < 3; i++) {
      const jpeg_component_info *about = &info->comp_info[i];
      JDIMENSION high = (JDIMENSION)about->v_samp_factor * DCTSIZE, width = about->downsampled_width;
      for (JDIMENSION y = 0; y < high && done * high + y < about->downsampled_height; y++)
        memcpy(out[i] + (size_t)(done * high + y) * width, rows[i][y], width);
    }
  }
  jpeg_abort_decompress(info);
  return self->truncated ? FB_TRUNCATED : FB_OK;
}
