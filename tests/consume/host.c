/* A host written in C: host [MODEL.gguf]. */
#include <decant/decant.h>
#include <stdio.h>
#include <string.h>

static int count_text(void* user, const char* text, size_t n) {
  (void)text;
  *(size_t*)user += n;
  return 0;
}

static int fail(const char* what, const decant_error* error) {
  fprintf(stderr, "%s: %s: %s\n", what, decant_status_string(error->status), error->message);
  return 1;
}

int main(int argc, char** argv) {
  decant_error error;
  decant_model* model = NULL;
  decant_session* session = NULL;
  size_t bytes = 0;

  if (decant_model_load("no such file.gguf", NULL, &model, &error) != DECANT_NOT_FOUND ||
      model != NULL || strstr(error.message, "no such file.gguf") == NULL)
    return fail("a missing file", &error);

  if (argc > 1) {
    decant_model_options load = decant_model_options_default();
    decant_generate_options options = decant_generate_options_default();
    decant_stats stats;
    stats.size = sizeof stats;
    load.use_reference = 1;
    options.max_tokens = 3;
    options.temperature = 0;
    if (decant_model_load(argv[1], &load, &model, &error) != DECANT_OK) return fail("load", &error);
    if (decant_session_create(model, &session, &error) != DECANT_OK) return fail("session", &error);
    decant_model_free(model); /* the session keeps what it needs */
    if (decant_session_append_text(session, "hello", 5, &error) != DECANT_OK)
      return fail("append", &error);
    if (decant_session_generate(session, &options, count_text, &bytes, &stats, &error) != DECANT_OK)
      return fail("generate", &error);
    if (stats.tokens == 0 || stats.tokens > 3) return fail("tokens", &error);
    decant_session_free(session);
  }
  puts(argc > 1 ? "host: a model answered" : "host: no model given");
  return 0;
}
