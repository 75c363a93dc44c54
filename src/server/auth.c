#include "server/auth.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/mem.h"

#define DIGEST_BYTES 32
#define KEY_MAX      4096
#define FILE_MAX     (1u << 20)

struct auth {
    unsigned char (*digest)[DIGEST_BYTES]; /* (n) */
    size_t n;
};

static enum nyb_code add_key(struct auth *a, const char *key, size_t n, struct nyb_err *err)
{
    a->digest = mem_grow(a->digest, a->n + 1, sizeof(*a->digest));
    if (n > KEY_MAX || gnutls_hash_fast(GNUTLS_DIG_SHA256, key, n, a->digest[a->n]) != 0)
        return err_set(err, NYB_E_ARG, "an API key is longer than %d bytes or cannot be hashed", KEY_MAX);
    a->n++;
    return NYB_OK;
}

/* One key a line; blanks around it, empty lines and lines that begin with # do not count. */
static enum nyb_code add_file(struct auth *a, const char *path, struct nyb_err *err)
{
    static const char mark[] = "\xef\xbb\xbf"; /* what some editors put before UTF-8 */
    char *text;
    size_t len, before = a->n;
    TRY(file_read_text(path, FILE_MAX, &text, &len, err));
    enum nyb_code code = NYB_OK;
    char *line = strncmp(text, mark, strlen(mark)) ? text : text + strlen(mark);
    while (code == NYB_OK && *line) {
        char *end = line + strcspn(line, "\n"), *next = *end ? end + 1 : end;
        while (end > line && strchr(" \t\r", end[-1]))
            end--;
        line += strspn(line, " \t");
        if (line < end && *line != '#')
            code = add_key(a, line, (size_t)(end - line), err);
        line = next;
    }
    gnutls_memset(text, 0, len);
    free(text);
    if (code == NYB_OK && a->n == before)
        code = err_at(err, NYB_E_ARG, path, -1, "there is no key in it");
    return code;
}

enum nyb_code auth_open(struct auth **out, const struct config_list *keys, const char *file,
                        const char *option, struct nyb_err *err)
{
    struct auth *a = mem_alloc(1, sizeof(*a));
    enum nyb_code code = NYB_OK;
    for (int i = 0; code == NYB_OK && i < keys->n; i++)
        code = *keys->item[i] ? add_key(a, keys->item[i], strlen(keys->item[i]), err)
                              : err_at(err, NYB_E_ARG, option, -1, "an API key must not be empty");
    if (code == NYB_OK && file)
        code = add_file(a, file, err);
    *out = code == NYB_OK && a->n ? a : NULL;
    if (!*out)
        auth_close(a);
    return code;
}

enum nyb_code auth_renew(struct auth **a, const struct config_list *keys, const char *file,
                         const char *option, struct nyb_err *err)
{
    struct auth *fresh;
    TRY(auth_open(&fresh, keys, file, option, err));
    auth_close(*a);
    *a = fresh;
    return NYB_OK;
}

void auth_close(struct auth *a)
{
    if (a)
        free(a->digest);
    free(a);
}

static bool is_known(const struct auth *a, const char *key)
{
    unsigned char digest[DIGEST_BYTES];
    size_t n = strlen(key);
    if (n > KEY_MAX || gnutls_hash_fast(GNUTLS_DIG_SHA256, key, n, digest) != 0)
        return false;
    bool found = false;
    for (size_t i = 0; i < a->n; i++)
        found |= gnutls_memcmp(digest, a->digest[i], DIGEST_BYTES) == 0;
    return found;
}

bool auth_allows(const struct auth *a, const char *header, const char *key)
{
    static const char scheme[] = "Bearer ";
    size_t skip = strlen(scheme);
    if (!a)
        return true;
    return (header && !strncasecmp(header, scheme, skip) && is_known(a, header + skip)) ||
           (key && is_known(a, key));
}
