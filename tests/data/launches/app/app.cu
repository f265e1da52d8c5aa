#include <cstdio>
#include <cuda_runtime.h>
__global__ void transpose(float *o, const float *a, int n) {
  __shared__ float t[32][32];
  int x = blockIdx.x*32+threadIdx.x, y = blockIdx.y*32+threadIdx.y;
  t[threadIdx.y][threadIdx.x] = a[y*n+x]; __syncthreads();
  o[(blockIdx.x*32+threadIdx.y)*n + blockIdx.y*32+threadIdx.x] = t[threadIdx.x][threadIdx.y];
}
__global__ void gather(float *o, const int *idx) { extern __shared__ float s[]; s[threadIdx.x]=threadIdx.x; __syncthreads(); o[threadIdx.x]=s[idx[threadIdx.x]]; }
int main() {
  int n=256; float *a,*o; int *ix; cudaMalloc(&a,n*n*4); cudaMalloc(&o,n*n*4); cudaMalloc(&ix,4096);
  int h[1024]; for(int k=0;k<1024;k++) h[k]=(k*32)%1024; cudaMemcpy(ix,h,4096,cudaMemcpyHostToDevice);
  cudaStream_t s[2]; for(auto&x:s) cudaStreamCreate(&x);
  for(int k=0;k<20;k++) transpose<<<dim3(8,8),dim3(32,32),0,s[k%2]>>>(o,a,n);
  gather<<<1,1024,4096>>>(o,ix); gather<<<1,1024,4096>>>(o,ix);
  cudaDeviceSynchronize();
  cudaGraph_t g; cudaGraphExec_t e; cudaStreamBeginCapture(s[0],cudaStreamCaptureModeGlobal);
  for(int k=0;k<3;k++) transpose<<<dim3(4,4),dim3(32,32),0,s[0]>>>(o,a,n);
  cudaStreamEndCapture(s[0],&g); cudaGraphInstantiate(&e,g,0);
  for(int k=0;k<5;k++) cudaGraphLaunch(e,s[0]);
  cudaDeviceSynchronize(); printf("%s\n", cudaGetErrorString(cudaGetLastError())); return 0; }
