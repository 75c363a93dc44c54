/* A program that has nybble as its library: one prompt, the answer as it is made.
 *
 *     cc story.c $(pkg-config --cflags --libs nybble) -o story && ./story MODEL "Once upon a time" 64 */
#include <stdio.h>
#include <stdlib.h>

#include <nybble.h>

static int fail(const struct nyb_err *err)
{
    fprintf(stderr, "%s%s%s\n", err->where, err->where[0] ? ": " : "", err->message);
    return 1;
}

/* Until the end of the answer; the events carry only whole characters. */
static int print_answer(struct nyb_stream *stream)
{
    struct nyb_event event;
    while (nyb_next(stream, &event, -1)) {
        fwrite(event.text, 1, event.text_bytes, stdout);
        fflush(stdout);
        if (event.finish == NYB_FINISH_ERROR)
            return fail(event.error);
        if (event.finish != NYB_FINISH_NONE)
            fprintf(stderr, "\n%d tokens, %s\n", event.usage.completion_tokens,
                    nyb_finish_name(event.finish));
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct nyb_options options;
    struct nyb_engine *engine;
    struct nyb_sampling sampling;
    struct nyb_stream *stream;
    struct nyb_err err;
    if (argc != 4) {
        fprintf(stderr, "usage: %s MODEL PROMPT TOKENS\n", argv[0]);
        return 2;
    }
    nyb_set_log(NYB_LOG_WARN, NULL, NULL);
    nyb_options_init(&options);
    options.model = argv[1];
    if (nyb_open(&engine, &options, &err) != NYB_OK)
        return fail(&err);

    nyb_sampling_init(&sampling);
    sampling.temperature = 0;
    sampling.max_tokens = atoi(argv[3]);
    const struct nyb_request request = {.text = argv[2], .sampling = &sampling};
    int status = 1;
    if (nyb_submit(engine, &request, &stream, &err) != NYB_OK) {
        fail(&err);
    } else {
        status = print_answer(stream);
        nyb_stream_free(stream);
    }
    nyb_close(engine);
    return status;
}
