#include "server/rename.h"

#include <stdio.h>
#include <string.h>

static void replace(struct nyb_err *err, char *at, size_t n, const char *text)
{
    char rest[sizeof(err->message)];
    snprintf(rest, sizeof(rest), "%s", at + n);
    snprintf(at, sizeof(err->message) - (size_t)(at - err->message), "%s%s", text, rest);
}

/* A name at the beginning and in "(parameter=OLD" at the end. */
static void rename_in_message(struct nyb_err *err, const struct rename *row, const char *list)
{
    char text[64];
    size_t n = strlen(row->chat);
    snprintf(text, sizeof(text), "(parameter=%s", row->chat);
    char *at = strstr(err->message, text);
    if (at)
        replace(err, at + strlen(text) - n, n, row->asked);
    if (strncmp(err->message, row->chat, n))
        return;
    snprintf(text, sizeof(text), "Of the %s as a chat, ", list);
    if (err->message[n] == '[')
        replace(err, err->message, 0, text);
    else
        replace(err, err->message, n, row->asked);
}

void rename_fault(struct nyb_err *err, const struct rename *table, size_t n, const char *list)
{
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(table[i].chat);
        if (strncmp(err->where, table[i].chat, len) || (err->where[len] && err->where[len] != '['))
            continue;
        snprintf(err->where, sizeof(err->where), "%s", table[i].asked);
        rename_in_message(err, &table[i], list);
        return;
    }
}
