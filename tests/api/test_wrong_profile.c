/* tests/api/test_wrong_profile.c -- wrong calls of profile.h */
#include <math.h>

#include "api/wrong.h"

static quern_program *program;
static quern_instance *instance;

/* A program of the interpreter with an instance, for the time of a call. */
static void begin(void) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  quern_tensor *y = quern_neg(quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(2)));
  options.device = "interp";
  options.threads = 1;
  assert_int_equal(quern_program_compile(&program, ctx, 1, &y, &options), QUERN_STATUS_OK);
  assert_int_equal(quern_instance_new(&instance, program), QUERN_STATUS_OK);
}

static void end(void) {
  quern_instance_free(instance);
  quern_program_free(program);
}

#define DURING(call) (begin(), during_status = (call), end(), during_status)
static quern_status during_status;

/* What a failed call leaves in the place for the text. */
static char *left = (char *)"";

static quern_status profile_of_another(void) {
  begin();
  quern_program *first = program;
  quern_instance *of_first = instance;
  begin();
  quern_status status = quern_program_profile(program, of_first, QUERN_PROFILE_TABLE, &left);
  end();
  program = first;
  instance = of_first;
  end();
  return status;
}

static quern_status explain_of_another(void) {
  begin();
  quern_program *first = program;
  quern_instance *of_first = instance;
  begin();
  quern_status status = quern_program_explain(program, of_first, QUERN_EXPLAIN_PLAN, &left);
  end();
  program = first;
  instance = of_first;
  end();
  return status;
}

/* Of two programs; which of the four is left out, or that both instances are of the second. */
static quern_status compare(int leave_out, bool mixed) {
  begin();
  quern_program *first = program;
  quern_instance *of_first = instance;
  begin();
  quern_status status = quern_program_compare(leave_out == 0 ? NULL : first,
                                              leave_out == 1 ? NULL
                                              : mixed        ? instance
                                                             : of_first,
                                              leave_out == 2 ? NULL : program, leave_out == 3 ? NULL : instance,
                                              leave_out == 4 ? NULL : &left);
  end();
  program = first;
  instance = of_first;
  end();
  return status;
}

static quern_measure_stats measured = {.size = sizeof measured};
#define measure(...)                                                                                                   \
  quern_program_measure(program, &(quern_measure_options){.size = sizeof(quern_measure_options), __VA_ARGS__},         \
                        &measured)

static quern_status measure_another(void) {
  begin();
  quern_program *first = program;
  quern_instance *of_first = instance;
  begin();
  quern_status status = measure(.instance = of_first);
  end();
  program = first;
  instance = of_first;
  end();
  return status;
}

static quern_status profile_form(int form) {
  begin();
  quern_status status = quern_instance_record(instance, true);
  if (status == QUERN_STATUS_OK) status = quern_program_profile(program, instance, (quern_profile_form)form, &left);
  end();
  return status;
}

static bool text_left_is_null(void) {
  left = (char *)"";
  return quern_program_explain(NULL, NULL, QUERN_EXPLAIN_PLAN, &left) == QUERN_STATUS_INVALID && left == NULL;
}

static bool frees_nothing(void) {
  begin();
  quern_free_text(NULL);
  end();
  return true;
}

static bool record_twice(void) {
  begin();
  bool good = quern_instance_record(instance, true) == QUERN_STATUS_OK &&
              quern_instance_record(instance, true) == QUERN_STATUS_OK &&
              quern_instance_record(instance, false) == QUERN_STATUS_OK &&
              quern_instance_record(instance, false) == QUERN_STATUS_OK;
  end();
  return good;
}

#define ROWS "api/wrong_profile.def"
#include "api/rows.h"
