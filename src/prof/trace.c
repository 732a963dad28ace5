/* prof/trace.c -- recorded events for other programs: Chrome's JSON and flame-graph stacks
** tests: tests/prof/test_report.c (the JSON is parsed back)
*/
#include "prof/prof.h"

/* A JSON string: names of kernels are plain, names of programs may be anything. */
void prof_add_string(struct base_str *str, const char *text) {
  base_str_add(str, "\"");
  for (const unsigned char *c = (const unsigned char *)text; *c != 0; c++) {
    if (*c == '"' || *c == '\\')
      base_str_printf(str, "\\%c", *c);
    else if (*c < 0x20)
      base_str_printf(str, "\\u%04x", *c);
    else
      base_str_add_n(str, (const char *)c, 1);
  }
  base_str_add(str, "\"");
}

quern_status prof_trace(struct base_str *str, const struct prof *prof) {
  base_str_add(str, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n");
  base_str_add(str, "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 1, \"tid\": 1, \"args\": {\"name\": ");
  prof_add_string(str, prof->program);
  base_str_add(str, "}}");
  double start = prof->n_events > 0 ? prof->events[0].begin : 0;
  for (size_t i = 0; i < prof->n_events; i++) {
    const struct prof_event *e = &prof->events[i];
    const struct prof_step *s = &prof->steps[e->step];
    double seconds = e->end - e->begin;
    base_str_add(str, ",\n{\"name\": ");
    prof_add_string(str, s->kernel);
    base_str_add(str, ", \"cat\": ");
    prof_add_string(str, s->kind);
    base_str_printf(str, ", \"ph\": \"X\", \"pid\": 1, \"tid\": 1, \"ts\": %.3f, \"dur\": %.3f, \"args\": {\"ops\": ",
                    (e->begin - start) * 1e6, seconds * 1e6);
    prof_add_string(str, s->ops);
    if (s->layer != NULL && s->layer[0] != 0) {
      base_str_add(str, ", \"layer\": ");
      prof_add_string(str, s->layer);
    }
    base_str_printf(str, ", \"step\": %d", e->step);
    if (seconds > 0)
      base_str_printf(str, ", \"gflops\": %.3f, \"gbs\": %.3f", s->cost.flops / seconds * 1e-9,
                      s->cost.bytes / seconds * 1e-9);
    if (seconds > 0 && s->floor > 0)
      base_str_printf(str, ", \"limit_pct\": %.1f, \"bound\": \"%s\"", 100 * s->floor / seconds,
                      prof_bound_names[s->bound]);
    base_str_add(str, "}}");
  }
  base_str_add(str, "\n]}\n");
  return base_str_status(str);
}

quern_status prof_folded(struct base_str *str, const struct prof *prof) {
  for (size_t i = 0; i < prof->n_steps; i++) {
    const struct prof_step *s = &prof->steps[i];
    if (s->count == 0) continue;
    base_str_printf(str, "%s;%s;%s %.0f\n", prof->program, s->kind, s->kernel, s->seconds * 1e6);
  }
  return base_str_status(str);
}
