/* What an answer of the Responses API repeats of its request. */
#ifndef NYB_SERVER_RESPONSES_SETTINGS_H
#define NYB_SERVER_RESPONSES_SETTINGS_H

#include "base/json.h"

/* Appends ,"NAME":VALUE of all settings, as asked or with what the API says where nothing was. The text is
 * bounded: a stream has it three times. */
enum nyb_code responses_settings(const json_t *asked, struct buf *b, struct nyb_err *err) NYB_MUST_CHECK;

#endif
