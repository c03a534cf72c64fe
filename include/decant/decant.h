/* Decant's C ABI: load a model, talk to it, read errors. The part of the library whose binary
 * interface stays compatible; the C++ header decant.hpp has more.
 *
 *   decant_error error;
 *   decant_model* model = NULL;
 *   if (decant_model_load("model.gguf", NULL, &model, &error)) { puts(error.message); ... }
 *
 * Every call returns a decant_status (0 is success) and fills `error` if it is not NULL. Strings
 * are UTF-8 and end with a zero byte. Handles may be freed in any order and from any thread; NULL
 * is ignored. A session is used from one thread at a time, a model from any. A failed call changes
 * nothing (but see decant_text_callback) and leaves its out-parameters as they were. */
#ifndef DECANT_H
#define DECANT_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) && defined(DECANT_SHARED)
#if defined(DECANT_BUILDING)
#define DECANT_C_API __declspec(dllexport)
#else
#define DECANT_C_API __declspec(dllimport)
#endif
#elif defined(__GNUC__) && !defined(_WIN32)
#define DECANT_C_API __attribute__((visibility("default")))
#else
#define DECANT_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers of decant::ErrorCode; new ones are appended. */
enum decant_status {
  DECANT_OK = 0,
  DECANT_INVALID_ARGUMENT = 1,
  DECANT_INVALID_STATE = 2,
  DECANT_BUSY = 3,
  DECANT_WOULD_BLOCK = 4,
  DECANT_NOT_FOUND = 5,
  DECANT_IO = 6,
  DECANT_INVALID_FILE = 7,
  DECANT_UNSUPPORTED = 8,
  DECANT_OUT_OF_MEMORY = 9,
  DECANT_CONTEXT_FULL = 10,
  DECANT_NO_VALID_TOKEN = 11,
  DECANT_CALLBACK_FAILED = 12,
  DECANT_INTERNAL = 13,
  DECANT_QUEUE_FULL = 14,
  DECANT_DEVICE_UNAVAILABLE = 15,
  DECANT_DEVICE_LOST = 16
};

/* The status' name, for example "invalid_argument". Never NULL. */
DECANT_C_API const char* decant_status_string(int status);
/* "0.1.0" */
DECANT_C_API const char* decant_version(void);

typedef struct decant_error {
  int status;
  char message[1025]; /* says what, where and how to mend it; empty after success */
} decant_error;

typedef struct decant_model decant_model;
typedef struct decant_session decant_session;

/* Always begin with decant_model_options_default(): `size` tells which fields the caller knows. */
typedef struct decant_model_options {
  size_t size;
  int use_reference; /* not 0: the reference backend */
  int threads;       /* 0: one per processor */
  size_t context;    /* tokens a session may hold; 0: min(the model's, 4096) */
  size_t sessions;   /* the KV pool holds so many full sessions */
  int mapped;        /* not 0: weights stay in the mapped file: slow; it must not shrink */
  /* Called while loading with 0..1, never falling; a result that is not 0 cancels. May be NULL. */
  int (*progress)(void* user, float fraction);
  void* progress_user;
  int no_prefix_cache; /* not 0: sessions do not share what they computed */
  int manual;          /* not 0: the host runs the model with decant_model_step, or by waiting */
  size_t max_batch;    /* most replies that run at the same time */
  size_t max_queue;    /* most that wait for their turn; one more: DECANT_QUEUE_FULL */
  /* Bytes, taken at load, for the KV pages of replies that are preempted; what does not fit, and
   * with 0 everything, is run again. Never changes results. */
  size_t swap_memory;
  int use_cuda; /* not 0: the CUDA backend, on GPU number use_cuda - 1 */
  /* Of the CUDA backend: a cudaStream_t to use, which must outlive the model, its sessions and
   * replies. NULL: one of its own. */
  void* stream;
} decant_model_options;
DECANT_C_API decant_model_options decant_model_options_default(void);

/* options may be NULL. */
DECANT_C_API int decant_model_load(const char* path, const decant_model_options* options,
                                   decant_model** model, decant_error* error);
DECANT_C_API void decant_model_free(decant_model* model);
/* A manual model: runs it for about so long, at least a little; *more (may be NULL) tells whether
 * anything is left to do. DECANT_BUSY while another thread does. */
DECANT_C_API int decant_model_step(decant_model* model, uint64_t budget_ns, int* more,
                                   decant_error* error);

DECANT_C_API int decant_session_create(decant_model* model, decant_session** session,
                                       decant_error* error);
DECANT_C_API void decant_session_free(decant_session* session);
/* A session of its own with the same first n_tokens tokens (SIZE_MAX: all); the two share memory
 * until they differ. A session of messages is forked whole. */
DECANT_C_API int decant_session_fork(decant_session* session, size_t n_tokens,
                                     decant_session** forked, decant_error* error);
/* Forgets all tokens from position n_tokens on; 0 only for a session of messages. */
DECANT_C_API int decant_session_rewind(decant_session* session, size_t n_tokens,
                                       decant_error* error);
/* Writes the session with what was computed of it into a file, which is replaced at once or not at
 * all; and makes a session of the same model the one that was saved. */
DECANT_C_API int decant_session_save(decant_session* session, const char* path,
                                     decant_error* error);
DECANT_C_API int decant_session_restore(decant_session* session, const char* path,
                                        decant_error* error);
/* n sessions of one model together: what they share is stored once. */
DECANT_C_API int decant_sessions_save(const decant_session* const* sessions, size_t n,
                                      const char* path, decant_error* error);
/* New sessions, equal to those that were saved and in their order: all or none. *n: room in
 * `sessions`, then how many there are; with too little room the call fails. */
DECANT_C_API int decant_sessions_restore(decant_model* model, const char* path,
                                         decant_session** sessions, size_t* n,
                                         decant_error* error);
/* A message of a conversation; role is "system", "user" or "assistant". */
DECANT_C_API int decant_session_append_message(decant_session* session, const char* role,
                                               const char* content, decant_error* error);
/* Raw text to continue, n bytes. A session holds either messages or raw text. */
DECANT_C_API int decant_session_append_text(decant_session* session, const char* text, size_t n,
                                            decant_error* error);

/* Always begin with decant_generate_options_default(). */
typedef struct decant_generate_options {
  size_t size;
  size_t max_tokens; /* SIZE_MAX: until the model ends its turn or the session is full */
  float temperature; /* 0: always the most likely token */
  int top_k;         /* <= 0: off */
  float top_p;       /* 1: off */
  float min_p;       /* 0: off */
  int has_seed;      /* 0: a seed is drawn from the system */
  uint64_t seed;
  const char* const* stop; /* [n_stop] the reply ends before the first of these; may be NULL */
  size_t n_stop;
  int priority;        /* higher ones go before others */
  uint64_t timeout_ns; /* the reply ends then and keeps what came; 0: never */
  int has_keep_first;  /* not 0: a full session loses the older half of its tokens and goes on, */
  size_t keep_first;   /* but keeps so many of the first ones */
} decant_generate_options;
DECANT_C_API decant_generate_options decant_generate_options_default(void);

/* The library fills the fields that fit `size`, which the caller sets to sizeof(decant_stats). */
typedef struct decant_stats {
  size_t size;
  size_t prompt_tokens;
  size_t cached_tokens;
  size_t tokens;
  double ttft_ms; /* time to first token */
  double tpot_ms; /* mean time per token after the first */
  uint64_t seed;
  const char* finish_reason; /* "end_token", "max_tokens", ...; never freed */
  size_t recomputed;         /* prompt tokens run again because a window's pages were reused */
} decant_stats;

/* n bytes of text: whole UTF-8 characters, no zero byte at the end. Runs on the calling thread. A
 * result that is not 0 stops the reply and keeps what came; so does a C++ exception, which makes
 * the call fail too. */
typedef int (*decant_text_callback)(void* user, const char* text, size_t n);

/* Generates a reply and returns when it has ended. options, on_text and stats may be NULL. */
DECANT_C_API int decant_session_generate(decant_session* session,
                                         const decant_generate_options* options,
                                         decant_text_callback on_text, void* user,
                                         decant_stats* stats, decant_error* error);

/* The same without waiting: a reply that the caller polls. Free it at any time; that cancels it. */
typedef struct decant_reply decant_reply;
DECANT_C_API int decant_session_start(decant_session* session,
                                      const decant_generate_options* options, decant_reply** reply,
                                      decant_error* error);
DECANT_C_API void decant_reply_free(decant_reply* reply);
/* The text that is ready, n bytes, 0 for none; it lives until the next call for this reply.
 * *finished is not 0 when the reply has ended and all its text was given; the status is then that
 * of the reply. */
DECANT_C_API int decant_reply_try_next(decant_reply* reply, const char** text, size_t* n,
                                       int* finished, decant_error* error);
/* From any thread: ends the reply and keeps what came, or takes the session back. */
DECANT_C_API void decant_reply_stop(decant_reply* reply);
DECANT_C_API void decant_reply_cancel(decant_reply* reply);
DECANT_C_API void decant_reply_stats(const decant_reply* reply, decant_stats* stats);

#ifdef __cplusplus
}
#endif

#endif
