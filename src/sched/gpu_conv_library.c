/* sched/gpu_conv_library.c -- convolutions and their gradients on GPUs as one library call (cuDNN)
** in:    what pass/convolutions.c made of a convolution
** keeps: the same bits every time, unless numerics=fast
** see:   kern.h (calls), docs/design/008-libraries.md      tests: tests/pass/test_convolutions.c
*/
#include "sched/cpu_attention.h"

bool conv_library_supports(const struct base_target *target, const struct ir_node *node) {
  struct pass_conv c;
  return pass_conv_read(node, &c) && pass_conv_is_known(target, &c, node->src[0]->dtype);
}

/* A product and a sum of each element of the window, channel, output and place. */
double conv_library_flops(const struct ir_node *node) {
  struct pass_conv c;
  if (!pass_conv_read(node, &c)) return 0;
  double flops = 2 * (double)c.samples * (double)c.outputs * (double)c.channels / (double)c.groups;
  for (int i = 0; i < c.spatial; i++) flops *= (double)c.out[i] * (double)c.window[i];
  return flops;
}

/* Bytes of workspace that cuDNN is taken to need until it is asked, which a plan without a GPU never does. */
static int64_t workspace(const struct pass_conv *c) { return c->part == PASS_CONV_WEIGHT_GRAD ? 4 << 20 : 1; }

quern_status sched_gpu_conv_library(struct sched_job *job) {
  static const enum kern_conv_part parts[] = {[PASS_CONV_FORWARD] = KERN_CONV_FORWARD,
                                              [PASS_CONV_INPUT_GRAD] = KERN_CONV_INPUT_GRAD,
                                              [PASS_CONV_WEIGHT_GRAD] = KERN_CONV_WEIGHT_GRAD};
  const struct ir_node *node = job->group->anchor;
  struct pass_conv c;
  QUERN_CHECK(!job->sched->no_library, UNSUPPORTED, "schedule: the library has refused %s", node->attrs->name);
  QUERN_CHECK(pass_conv_read(node, &c), INTERNAL, "schedule: %s is no convolution", node->attrs->name);
  const int first = att_operand_mem(job, 0, false), second = att_operand_mem(job, 1, false),
            out = att_operand_mem(job, 0, true);
  struct kern_library_call call = {.kind = KERN_LIBRARY_CONV};
  struct kern_conv *k = &call.conv;
  *k = (struct kern_conv){.part = parts[c.part],
                          .spatial = c.spatial,
                          .groups = c.groups,
                          .samples = c.samples,
                          .channels = c.channels,
                          .outputs = c.outputs,
                          .x = c.part == PASS_CONV_INPUT_GRAD ? out : first,
                          .w = c.part == PASS_CONV_FORWARD       ? second
                               : c.part == PASS_CONV_WEIGHT_GRAD ? out
                                                                 : first,
                          .y = c.part == PASS_CONV_FORWARD ? out : second,
                          .exact = !job->sched->fast,
                          .tf32 = job->sched->tf32 && node->src[0]->dtype == QUERN_DTYPE_F32};
  for (int i = 0; i < KERN_CONV_SPATIAL; i++) {
    k->in[i] = c.in[i], k->out[i] = c.out[i], k->window[i] = c.window[i];
    k->step[i] = c.step[i], k->dilation[i] = c.dilation[i], k->pad[i] = c.pad[i];
  }
  call.work = kern_add_mem(job->kern, QUERN_DTYPE_U8, KERN_WORK, workspace(&c));
  kern_add_library_call(job->kern, &call);
  return job->kern->failed;
}
